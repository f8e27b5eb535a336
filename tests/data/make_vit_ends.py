#!/usr/bin/env python3
"""Expected values for the ends of the vision tower (model.md 6.2 and 6.4): patch embedding with the
position table at the size of each item, final norm with the mean over frames and the 2x2 merge,
projector.  The resampling of the table and the GELU come from the float64 oracle blocks_ref.py.

usage: make_vit_ends.py REF_DIR OUT_DIR     writes vit_ends.safetensors
"""
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
import blocks_ref as ref  # noqa: E402

rng = np.random.default_rng(62)
# The first item has the size of the table; the others are larger on one axis, smaller on the other.
ITEMS = [(1, 4, 6), (4, 6, 2), (3, 2, 8)]
TABLE = (4, 6)
EPS = 1e-5


def save(name, tensors):
    head, data = {}, b""
    for key, x in tensors.items():
        x = np.ascontiguousarray(x, np.float32)
        head[key] = {"dtype": "F32", "shape": list(x.shape),
                     "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(sys.argv[2], name + ".safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def normal(*shape, scale=1.0):
    """Exact in float32, so that both sides compute from the same numbers."""
    return (rng.standard_normal(shape) * scale).astype(np.float32).astype(np.float64)


def rows_of(items):
    first = 0
    for t, h, w in items:
        yield slice(first, first + t * h * w), t, h, w
        first += t * h * w


def patches():
    return sum(t * h * w for t, h, w in ITEMS)


def times(t, d):
    angle = np.outer(np.arange(t), 10000.0 ** (-np.arange(d // 2) / (d / 2)))
    return np.hstack([np.sin(angle), np.cos(angle)])


def embed(pixels, d):
    n = patches()
    x, wpe, pos = normal(n, pixels), normal(d, pixels, scale=.3), normal(*TABLE, d)
    dy, y, dpos = normal(n, d), x @ wpe.T, np.zeros_like(pos)
    for rows, t, h, w in rows_of(ITEMS):
        own = pos if (h, w) == TABLE else ref.bil(pos, h, w)
        term = times(t, d) if t > 1 else np.zeros((1, d))
        y[rows] += (own[None] + term[:, None, None]).reshape(-1, d)
        dpos += ref.bil_b(pos, h, w, dy[rows].reshape(t, h, w, d).sum(0))
    return dict(patches=x, wpe=wpe, pos=pos.reshape(-1, d), x=y, dx=dy, dwpe=dy.T @ x,
                dpos=dpos.reshape(-1, d))


def merge(d):
    """x, dx by patch; z, dz by merged token, item by item."""
    n = patches()
    x, norm = normal(n, d), (1 + .3 * rng.standard_normal(d)).astype(np.float32).astype(np.float64)
    x[0] = (x[0] * 1e-3).astype(np.float32)  # eps matters
    xf, r = ref.rms_f(x, norm, EPS)
    z, dz, dxf = [], [], np.zeros_like(x)
    for rows, t, h, w in rows_of(ITEMS):
        mean = xf[rows].reshape(t, h // 2, 2, w // 2, 2, d).mean(0)
        z.append(mean.transpose(0, 2, 1, 3, 4).reshape(-1, 4 * d))
        dz.append(normal(*z[-1].shape))
        back = dz[-1].reshape(h // 2, w // 2, 2, 2, d).transpose(0, 2, 1, 3, 4).reshape(-1, d) / t
        dxf[rows] = np.tile(back, (t, 1))
    dx, dnorm = ref.rms_b(x, norm, r, dxf)
    return dict(x=x, norm=norm, z=np.vstack(z), xf=xf, rstd=r[:, 0], dz=np.vstack(dz), dx=dx,
                dxf=dxf, dnorm=dnorm)


def project(m, c, dt):
    z, w1, w2 = normal(m, c), normal(c, c, scale=.5), normal(dt, c, scale=.4)
    norm = (1 + .3 * rng.standard_normal(dt)).astype(np.float32).astype(np.float64)
    dy = normal(m, dt)
    z[0] = (z[0] * 1e-2).astype(np.float32)
    u = z @ w1.T
    s = ref.gelu_e(u) @ w2.T
    y, r = ref.rms_f(s, norm, EPS)
    ds, dnorm = ref.rms_b(s, norm, r, dy)
    du = (ds @ w2) * ref.gelu_e_b(u)
    return dict(z=z, w1=w1, w2=w2, norm=norm, u=u, s=s, y=y, rstd=r[:, 0], dy=dy, ds=ds, du=du,
                dz=du @ w1, dnorm=dnorm, dw1=du.T @ z, dw2=ds.T @ ref.gelu_e(u))


parts = dict(embed=embed(27, 10), merge=merge(7), project=project(9, 12, 7))
save("vit_ends", {f"{p}.{n}": x for p, part in parts.items() for n, x in part.items()})

#!/usr/bin/env python3
"""Expected values for the blocks of the vision tower: rotation and activation from the float64
oracle blocks_ref.py, attention and products here, in float64.

usage: make_vit_block.py REF_DIR OUT_DIR     writes vit_block.safetensors
"""
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
import blocks_ref as ref  # noqa: E402

rng = np.random.default_rng(61)
ITEMS = [(1, 4, 6), (2, 6, 2), (1, 2, 2)]
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


def rms_input(n, d):
    """Row 0 is so small that eps matters."""
    x = normal(n, d)
    x[0] = (x[0] * 1e-3).astype(np.float32)
    return x, (1 + .3 * rng.standard_normal(d)).astype(np.float32).astype(np.float64)


def rows_of(items):
    first = 0
    for t, h, w in items:
        yield slice(first, first + t * h * w), t, h, w
        first += t * h * w


def turn(x, back):
    """Every frame of every item; x (n, heads, hd)."""
    y = np.empty_like(x)
    for rows, t, h, w in rows_of(ITEMS):
        for frame in range(t):
            at = slice(rows.start + frame * h * w, rows.start + (frame + 1) * h * w)
            turned, angle = ref.rope2d(x[at], h, w)
            y[at] = ref.rope2d_b(x[at], angle) if back else turned
    return y


def qkv(d, h, hd):
    n, dq = sum(t * r * c for t, r, c in ITEMS), h * hd
    x, norm = rms_input(n, d)
    w, dy = normal(3 * dq, d, scale=.4), normal(n, d)
    gq, gkv = normal(n, dq), normal(n, 2 * dq)
    y, r = ref.rms_f(x, norm, EPS)
    p = y @ w.T
    turned = turn(p[:, :2 * dq].reshape(n, 2 * h, hd), False).reshape(n, -1)
    back = turn(np.hstack([gq, gkv[:, :dq]]).reshape(n, 2 * h, hd), True).reshape(n, -1)
    dp = np.hstack([back, gkv[:, dq:]])
    dx, dnorm = ref.rms_b(x, norm, r, dp @ w)
    return dict(x=x, norm=norm, w=w, dy=dy, dq=gq, dkv=gkv, qkv=np.hstack([turned, p[:, 2 * dq:]]),
                rstd=r[:, 0], dp=dp, dx=dy + dx, dnorm=dnorm, dw=dp.T @ y)


def attention(items, h, hd):
    n, dq, scale = sum(t * r * c for t, r, c in items), h * hd, float(np.float32(hd ** -0.5))
    x, do = normal(n, 3, h, hd, scale=1.5), normal(n, h, hd)
    o, lse, dqkv = np.zeros((n, h, hd)), np.zeros((n, h)), np.zeros_like(x)
    for rows, *_ in rows_of(items):
        for i in range(h):
            q, k, v = (x[rows, j, i] for j in range(3))
            s = scale * q @ k.T
            most = s.max(1, keepdims=True)
            lse[rows, i] = (most + np.log(np.exp(s - most).sum(1, keepdims=True)))[:, 0]
            p = np.exp(s - lse[rows, i][:, None])
            o[rows, i] = p @ v
            delta = (do[rows, i] * o[rows, i]).sum(1, keepdims=True)
            ds = p * (do[rows, i] @ v.T - delta) * scale
            for j, g in enumerate((ds @ k, ds.T @ q, p.T @ do[rows, i])):
                dqkv[rows, j, i] = g
    dqkv = dqkv.reshape(n, -1)
    return dict(qkv=x.reshape(n, -1), do=do, o=o, lse=lse, delta=(do * o).sum(2),
                dq=dqkv[:, :dq], dkv=dqkv[:, dq:])


def out(n, d, h, hd):
    x, o, w, dy = normal(n, d), normal(n, h * hd), normal(d, h * hd, scale=.4), normal(n, d)
    do = dy @ w
    return dict(x=x, o=o, w=w, dy=dy, y=x + o @ w.T, do=do, dw=dy.T @ o,
                delta=(do * o).reshape(n, h, hd).sum(2))


def mlp(n, d, f):
    x, norm = rms_input(n, d)
    fc0, fc1, dy = normal(f, d, scale=.6), normal(d, f, scale=.4), normal(n, d)
    m, r = ref.rms_f(x, norm, EPS)
    u = m @ fc0.T
    du = (dy @ fc1) * ref.gelu_t_b(u)
    dx, dnorm = ref.rms_b(x, norm, r, du @ fc0)
    return dict(x=x, norm=norm, fc0=fc0, fc1=fc1, dy=dy, u=u, rstd=r[:, 0],
                y=x + ref.gelu_t(u) @ fc1.T, du=du, dx=dy + dx, dnorm=dnorm, dfc0=du.T @ m,
                dfc1=dy.T @ ref.gelu_t(u))


parts = dict(qkv=qkv(10, 2, 12), attn=attention(ITEMS, 2, 36), long=attention([(1, 18, 18)], 1, 4),
             out=out(9, 7, 2, 5), mlp=mlp(9, 7, 21))
save("vit_block", {f"{p}.{n}": x for p, part in parts.items() for n, x in part.items()})

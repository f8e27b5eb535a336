#!/usr/bin/env python3
"""Expected values for the MoE tests, from the float64 oracle blocks_ref.py, and the quantile cases
of the golden training run (counted by the reference implementation, not by us).

usage: make_moe.py REF_DIR OUT_DIR TRAIN_TINY     writes moe.safetensors, moe_quantile.safetensors
TRAIN_TINY: the file train_tiny.safetensors
"""
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
import blocks_ref as ref  # noqa: E402

rng = np.random.default_rng(32)


def save(name, tensors):
    head, data = {}, b""
    for key, x in tensors.items():
        x = np.asarray(x)
        x = np.ascontiguousarray(x, np.int32 if x.dtype.kind == "i" else np.float32)
        head[key] = {"dtype": "I32" if x.dtype.kind == "i" else "F32", "shape": list(x.shape),
                     "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(sys.argv[2], name + ".safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def load(path, prefix):
    dtype = {"F64": "<f8", "F32": "<f4", "I32": "<i4"}
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    head.pop("__metadata__", None)
    return {n: np.frombuffer(data[slice(*h["data_offsets"])], dtype[h["dtype"]]).reshape(h["shape"])
            for n, h in head.items() if n.startswith(prefix)}


def f32(x):
    """Inputs are exact in float32, so that both sides compute from the same numbers."""
    return np.asarray(x, np.float32).astype(np.float64)


def normal(*shape, scale=1.0):
    return f32(rng.standard_normal(shape) * scale)


def chain(T, D, R, F, E, k):
    x, wr, bias, wd = normal(T, D), normal(E, D, scale=.5), normal(E, scale=.1), normal(R, D, scale=.4)
    w1, w3, w2 = (normal(*n) for n in ((E, F, R), (E, F, R), (E, R, F)))
    norm, wu = f32(1 + .2 * rng.standard_normal(R)), normal(D, R)
    p_in, shared, dp = normal(T, D), normal(T, D), normal(T, D)
    args = (x, wr, bias, wd, w1, w3, w2, norm, wu, k)
    y, tape = ref.moe_f(*args)
    s, idx, w = tape[0], tape[1], tape[3]
    order = -np.sort(-(s + bias), 1)
    assert (order[:, k - 1] - order[:, k]).min() > 1e-4, "a near tie: float32 could choose otherwise"
    dx, dwr, dwd, dw1, dw3, dw2, dnorm, dwu = ref.moe_b(*args, tape, dp)
    return dict(x=x, wr=wr, bias=bias, wdown=wd, w13=np.concatenate([w1, w3], 1), w2=w2, norm=norm,
                wup=wu, p_in=p_in, shared=shared, dp=dp, ids=idx, s=s, w=w, cut=order[:, k],
                y=tape[5], p_out=p_in + shared + y, dx=dx, dwr=dwr, dwdown=dwd,
                dw13=np.concatenate([dw1, dw3], 1), dw2=dw2, dnorm=dnorm, dwup=dwu)


def situ():
    """All signs and both saturations of gate and up branch."""
    g, u = (a.ravel() for a in np.meshgrid([-90, -9, -3, -.5, 0, .01, 2, 7, 40],
                                           [-300, -40, -5, -.2, 0, .1, 20, 60]))
    g, u = f32(g), f32(u)
    dy = normal(g.size)
    dg, du = ref.situ_b(g, u, dy)
    return dict(g=g, u=u, dy=dy, y=ref.situ_f(g, u), dg=dg, du=du)


parts = dict(chain=chain(11, 10, 7, 5, 9, 3), situ=situ())
save("moe", {f"{p}.{n}": x for p, part in parts.items() for n, x in part.items()})
save("moe_quantile", {n.removeprefix("quantile."): x for n, x in load(sys.argv[3], "quantile.").items()
                  if "bias_out" not in n})

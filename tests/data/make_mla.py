#!/usr/bin/env python3
"""Expected values for the MLA tests, from the float64 oracle blocks_ref.py.

usage: make_mla.py REF_DIR OUT_DIR     writes mla.safetensors
"""
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
import blocks_ref as ref  # noqa: E402

rng = np.random.default_rng(31)
H, NOPE, ROPE, V = 3, 5, 3, 7
KQ = NOPE + ROPE


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


def f32(x):
    """Inputs are exact in float32, so that both sides compute from the same numbers."""
    return np.asarray(x, np.float32).astype(np.float64)


def normal(*shape, scale=1.0):
    return f32(rng.standard_normal(shape) * scale)


def attention():
    """100 rows: four documents with holes inside, a document of one token, padding at the end."""
    doc = np.array([1] * 30 + [2] + [3] * 51 + [4] * 12 + [0] * 6)
    doc[[7, 8, 40, 72]] = 0
    T = len(doc)
    q, kv = normal(T, H, KQ, scale=1.5), normal(T, H * (NOPE + V) + ROPE)
    da, s = normal(T, H, V), float(np.float32(KQ ** -0.5))
    at = np.flatnonzero(doc)
    o, lse, delta = np.zeros((T, H, V)), np.full((T, H), -np.inf), np.zeros((T, H))
    dq, dkv = np.zeros((T, H, KQ)), np.zeros_like(kv)
    shared = kv[:, -ROPE:]
    for h in range(H):
        c = h * (NOPE + V)
        k, v = np.hstack([kv[:, c:c + NOPE], shared])[at], kv[at, c + NOPE:c + NOPE + V]
        o[at, h], lse[at, h] = ref.att_f(q[at, h], k, v, s, doc[at])
        dq[at, h], dk, dv = ref.att_b(q[at, h], k, v, s, doc[at], o[at, h], lse[at, h], da[at, h])
        dkv[at, c:c + NOPE], dkv[at, c + NOPE:c + NOPE + V] = dk[:, :NOPE], dv
        dkv[at, -ROPE:] += dk[:, NOPE:]
        delta[:, h] = (da[:, h] * o[:, h]).sum(1)
    return dict(doc=doc, q=q, kv=kv, da=da, o=o, lse=lse, delta=delta, dq=dq, dkv=dkv)


def proj(T, D, RQ, RKV, eps):
    """Queries, compressed keys and gate; row 0 is so small that eps matters."""
    x, dq, dc, dz = normal(T, D), normal(T, H * KQ), normal(T, RKV + ROPE), normal(T, H * V)
    x[0] = f32(x[0] * 1e-3)
    wqa, wqb, wkva, wg = (normal(*n, scale=.4) for n in ((RQ, D), (H * KQ, RQ), (RKV + ROPE, D),
                                                        (H * V, D)))
    qn = f32(1 + .3 * rng.standard_normal(RQ))
    qa = x @ wqa.T
    lat, r = ref.rms_f(qa, qn, eps)
    dqa, dqn = ref.rms_b(qa, qn, r, dq @ wqb)
    return dict(x=x, dq=dq, dc=dc, dzg=dz, wqa=wqa, wqb=wqb, wkva=wkva, wgate=wg, qn=qn, qa=qa,
                q=lat @ wqb.T, c=x @ wkva.T, zg=x @ wg.T, dqa=dqa, dqn=dqn,
                dx=dqa @ wqa + dc @ wkva + dz @ wg, dwqa=dqa.T @ x, dwqb=dq.T @ lat,
                dwkva=dc.T @ x, dwgate=dz.T @ x)


def expand(T, RKV, eps):
    wide = H * (NOPE + V)
    c, kn = normal(T, RKV + ROPE), f32(1 + .3 * rng.standard_normal(RKV))
    c[0] = f32(c[0] * 1e-3)
    w, dkv = normal(wide, RKV, scale=.4), normal(T, wide)
    dshared = normal(2, T, ROPE)
    lat, r = ref.rms_f(c[:, :RKV], kn, eps)
    dlat, dkn = ref.rms_b(c[:, :RKV], kn, r, dkv @ w)
    return dict(c=c, kn=kn, wkvb=w, dkv=dkv, dshared=dshared,
                kv=np.hstack([lat @ w.T, c[:, RKV:]]), dc=np.hstack([dlat, dshared.sum(0)]),
                dkn=dkn, dwkvb=dkv.T @ lat)


def out(T, D):
    zg, o, p, dp = normal(T, H, V, scale=2), normal(T, H, V), normal(T, D), normal(T, D)
    w = normal(D, H * V, scale=.4)
    z = ref.sig(zg)
    a, dg = (o * z).reshape(T, -1), (dp @ w).reshape(T, H, V)
    return dict(zg=zg, o=o, p_in=p, dp=dp, wo=w, p_out=p + a @ w.T, da=dg * z,
                dzg=dg * o * z * (1 - z), delta=(dg * z * o).sum(-1), dwo=dp.T @ a)


parts = dict(attn=attention(), proj=proj(7, 9, 6, 5, 1e-6), expand=expand(7, 6, 1e-6), out=out(7, 10))
save("mla", {f"{p}.{n}": x for p, part in parts.items() for n, x in part.items()})

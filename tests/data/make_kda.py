#!/usr/bin/env python3
"""Expected values for the KDA tests, from the float64 oracle kda_ref.py.

usage: make_kda.py REF_DIR OUT_DIR     writes kda_shapes, kda_layer, kda_small (.safetensors)
"""
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
import kda_ref as ref  # noqa: E402

rng = np.random.default_rng(20)


def save(name, tensors):
    head, data = {}, b""
    for key, x in tensors.items():
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


def unit(x):
    return f32(x / np.sqrt((x * x).sum(-1, keepdims=True)))


def mixed_gates(shape):
    """Log decays over the whole of [-5, 0]: half uniform, the rest at both ends, channels mixed."""
    g = -5 * rng.random(shape)
    pick = rng.random(shape)
    g[pick < 0.25] = -0.001
    g[pick > 0.75] = -5.0
    return f32(g)


def shapes():
    out = {}
    for K, V, T in ((16, 48, 17), (24, 16, 33), (128, 32, 4), (1, 1, 20)):
        q, k = unit(rng.standard_normal((T, K))), unit(rng.standard_normal((T, K)))
        v, do = f32(rng.standard_normal((T, V))), f32(rng.standard_normal((T, V)))
        g, b = mixed_gates((T, K)), f32(rng.random(T))
        S0, dST = f32(rng.standard_normal((K, V))), f32(rng.standard_normal((K, V)))
        s = float(np.float32(K ** -0.5))
        o, ST, tape = ref.rec_fwd(q, k, v, g, b, s, S0)
        dq, dk, dv, dg, db, dS0 = ref.rec_bwd(q, k, v, g, b, s, tape, do, dST)
        for n, x in dict(q=q, k=k, v=v, do=do, g=g, beta=b, S0=S0, dST=dST, o=o, ST=ST, dq=dq, dk=dk, dv=dv,
                         dg=dg, dbeta=db, dS0=dS0).items():
            out[f"K{K}V{V}.{n}"] = x
    save("kda_shapes", out)


def layer():
    """conv -> l2 norm -> gate -> recurrence of two heads over documents with holes, and all of it backward."""
    H, K, W, lb = 2, 16, 4, -5.0
    P, s = H * K, float(np.float32(K ** -0.5))
    docs = [1, 2, 2, 3, 3, 3, 4, 4, 4, 4] + [5] * 14 + [0] * 3 + [5] * 26 + [0] * 2 + [6] * 12
    docs = np.array(docs, np.int32)
    T = len(docs)
    u, f, br = f32(rng.standard_normal((T, 3 * P))), f32(3 * rng.standard_normal((T, P))), f32(rng.standard_normal((T, H)))
    w = f32(rng.standard_normal((3 * P, W)) * 0.5)
    A, dt = f32(np.log(1 + 15 * rng.random(H))), f32(0.3 * rng.standard_normal(P))
    do = f32(rng.standard_normal((T, P)))
    r = {n: np.zeros(x) for n, x in dict(qkv=(T, 3 * P), rstd=(T, 2 * H), o=(T, P), dqkvr=(T, 3 * P), dqkv=(T, 3 * P),
                                         df=(T, P), dbr=(T, H), dw=(3 * P, W), dA=(H,), ddt=(P,)).items()}
    for n in range(1, 7):
        at = np.flatnonzero(docs == n)
        y, tape = ref.conv_fwd(u[at], w, np.zeros((W - 1, 3 * P)))
        dy = np.empty_like(y)
        for h in range(H):
            c = [slice(i * P + h * K, i * P + (h + 1) * K) for i in range(3)]
            q, rq = ref.l2_fwd(y[:, c[0]])
            k, rk = ref.l2_fwd(y[:, c[1]])
            v, g = y[:, c[2]], ref.gate_fwd(f[at][:, c[0]], A[h], dt[c[0]], lb)
            b = ref.sig(br[at, h])
            o, _, st = ref.rec_fwd(q, k, v, g, b, s, np.zeros((K, K)))
            dq, dk, dv, dg, db, _ = ref.rec_bwd(q, k, v, g, b, s, st, do[at][:, c[0]], np.zeros((K, K)))
            dy[:, c[0]], dy[:, c[1]], dy[:, c[2]] = ref.l2_bwd(q, rq, dq), ref.l2_bwd(k, rk, dk), dv
            df, dA, ddt = ref.gate_bwd(f[at][:, c[0]], A[h], dt[c[0]], lb, dg)
            r["o"][at, c[0]], r["df"][at, c[0]], r["dbr"][at, h] = o, df, db * b * (1 - b)
            r["dA"][h] += dA
            r["ddt"][c[0]] += ddt
            r["rstd"][at, h], r["rstd"][at, H + h] = rq[:, 0], rk[:, 0]
            for i, (x, dx) in enumerate(((q, dq), (k, dk), (v, dv))):
                r["qkv"][at, c[i]], r["dqkv"][at, c[i]] = x, dx
        r["dqkvr"][at], dw, _ = ref.conv_bwd(w, tape, dy, len(at))
        r["dw"] += dw
    save("kda_layer", dict(docs=docs, qkvr=u, f=f, br=br, w=w, A=A, dt=dt, do=do, **r))


def small():
    """Gated norm with its projection, and the input projections, of three heads in groups of two."""
    T, H, V, D, K = 7, 3, 5, 11, 5
    P = H * V
    n = lambda *shape: f32(rng.standard_normal(shape))
    o, gg, wo, on, dp, p_in = n(T, P), n(T, P), n(D, P), n(V), n(T, D), n(T, D)
    x, wfa, wfb, wb, wg = n(T, D), n(K, D), n(P, K), n(H, D), n(P, D)
    wq, wk, wv, dqkvr = n(P, D), n(P, D), n(P, D), n(T, 3 * P)
    y, dy = np.empty((T, P)), dp @ wo
    do, dgg, don = np.empty((T, P)), np.empty((T, P)), np.zeros(V)
    for h in range(H):
        c = slice(h * V, (h + 1) * V)
        y[:, c], tape = ref.gnorm_fwd(o[:, c], on, gg[:, c])
        do[:, c], d, dgg[:, c] = ref.gnorm_bwd(on, gg[:, c], tape, dy[:, c])
        don += d
    out = dict(o=o, gg=gg, wo=wo, on=on, dp=dp, p_in=p_in, p_out=p_in + y @ wo.T, do=do, dgg=dgg, don=don, dwo=dp.T @ y,
               x=x, wfa=wfa, wfb=wfb, wb=wb, wg=wg, wq=wq, wk=wk, wv=wv, dqkvr=dqkvr)
    fa = x @ wfa.T
    out.update(fa=fa, f=fa @ wfb.T, br=x @ wb.T, ggp=x @ wg.T, qkvr=np.concatenate([x @ wq.T, x @ wk.T, x @ wv.T], 1))
    df, dbr = n(T, P), n(T, H)
    dfa = df @ wfb
    dq, dk, dv = np.split(dqkvr, 3, 1)
    out.update(df=df, dbr=dbr, dfa=dfa, dx_gate=dfa @ wfa + dbr @ wb + gg @ wg, dwfa=dfa.T @ x, dwfb=df.T @ fa,
               dwb=dbr.T @ x, dwg=gg.T @ x, dx_proj=dq @ wq + dk @ wk + dv @ wv, dwq=dq.T @ x, dwk=dk.T @ x,
               dwv=dv.T @ x)
    save("kda_small", out)


shapes()
layer()
small()

#!/usr/bin/env python3
"""Expected values for the tests of embedding, mixer, feed-forward, LM head and optimizer.

usage: make_blocks.py REF_DIR OUT_DIR     writes blocks, adamw, init (.safetensors)

REF_DIR holds blocks_ref.py, the float64 oracle.  What it does not hold as a function (cross
entropy per row, AdamW, the generator of initial values) is written here from its definition.
"""
import json
import math
import os
import struct
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
import blocks_ref as ref  # noqa: E402

rng = np.random.default_rng(31)
NAMES = {"i": ("I32", np.int32), "f": ("F64", np.float64)}


def save(name, tensors):
    head, data = {}, b""
    for key, x in tensors.items():
        x = np.asarray(x)
        dtype, kind = NAMES[x.dtype.kind] if x.dtype != np.float32 else ("F32", np.float32)
        x = np.ascontiguousarray(x, kind)
        head[key] = {"dtype": dtype, "shape": list(x.shape),
                     "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(sys.argv[2], name + ".safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def normal(*shape, scale=1.0):
    """Inputs are exact in float32, so that both sides compute from the same numbers."""
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def wide(*arrays):
    return [a.astype(np.float64) for a in arrays]


def mix(n):
    """Mix over n blocks and the prefix, then the norm; n = 0 is the norm alone."""
    T, D, eps = 6, 24, float(np.float32(1e-5))
    p, blocks, dy, add = normal(T, D), normal(n, T, D), normal(T, D), normal(2, T, D)
    gamma, rho, w = 1 + normal(D, scale=0.2), normal(D, scale=0.7), 1 + normal(D, scale=0.3)
    out = dict(p=p, dy=dy, add=add, w=w)
    x, g, r, wt, d = wide(p, gamma, rho, w, dy)
    if n:
        V = np.concatenate([blocks, p[None]]).astype(np.float64).transpose(1, 0, 2)
        x, (rv, sc, a) = ref.ar_f(V, g, r, eps)
    y, rx = ref.rms_f(x, wt, eps)
    dx, dw = ref.rms_b(x, wt, rx, d)
    out.update(y=y, rx=rx[:, 0], dw=dw, dp=dx)
    if n:
        dV, dgamma, drho = ref.ar_b(V, g, r, (rv, sc, a), dx)
        out.update(blocks=blocks, gamma=gamma, rho=rho, a=a, r=rv, s=sc, dp=dV[:, n],
                   dblocks=dV[:, :n].transpose(1, 0, 2), dgamma=dgamma, drho=drho)
    return {f"mix{n}.{k}": v for k, v in out.items()}


def glu():
    T, D, F = 5, 14, 9
    x, w1, w3, w2 = normal(T, D), normal(F, D), normal(F, D, scale=4), normal(D, F)
    p_in, dy = normal(T, D), normal(T, D)
    X, W1, W3, W2, P, DY = wide(x, w1, w3, w2, p_in, dy)
    g, u = X @ W1.T, X @ W3.T
    h = ref.situ_f(g, u)
    dg, du = ref.situ_b(g, u, DY @ W2)
    out = dict(x=x, w1=w1, w3=w3, w2=w2, p_in=p_in, dy=dy, gu=np.concatenate([g, u], 1),
               y=h @ W2.T, dgu=np.concatenate([dg, du], 1), dx=dg @ W1 + du @ W3,
               dw1=dg.T @ X, dw3=du.T @ X, dw2=DY.T @ h)
    return {"glu." + k: v for k, v in out.items()}


def head():
    T, D, V, inv_n = 9, 10, 23, 1 / 7
    h, w = normal(T, D), normal(V, D)
    labels = np.array([3, -100, 22, 0, 7, -1, 8, 15, 16], np.int32)
    H, W = wide(h, w)
    logits = H @ W.T
    labels[4] = logits[4].argmax()
    labels[8] = logits[8].argmax()
    most = logits.max(1, keepdims=True)
    lse = most[:, 0] + np.log(np.exp(logits - most).sum(1))
    dlogits = np.exp(logits - lse[:, None])
    loss, hit = np.zeros(T), np.zeros(T)
    for t in range(T):
        if labels[t] < 0:
            dlogits[t] = 0
            continue
        loss[t] = lse[t] - logits[t, labels[t]]
        hit[t] = logits[t].argmax() == labels[t]
        dlogits[t, labels[t]] -= 1
    dlogits *= inv_n
    out = dict(h=h, w=w, labels=labels, inv_n=[inv_n], logits=logits, loss=loss, hit=hit,
               dlogits=dlogits, dh=dlogits @ W, dw=dlogits.T @ H)
    return {"head." + k: np.asarray(v) for k, v in out.items()}


def factor(n, steps, warmup, ratio):
    decay = min(round(ratio * steps), steps - warmup)
    stable = steps + 1 - warmup - decay
    if n < warmup:
        return (n + 1) / warmup
    return 1.0 if n < warmup + stable else 1 - (n + 1 - warmup - stable) / decay


def adamw():
    """20 steps of two blocks; the gradient norm lies on both sides of the clip."""
    steps, sizes = 20, (37, 6)
    n = sum(sizes)
    lr, b1, b2, eps, wd, most, clip_eps = 8e-4, 0.9, 0.95, 1e-8, 0.1, 1.0, 1e-6
    start = normal(n)
    scale = 10.0 ** rng.uniform(-1.2, 0.6, steps)
    grads = np.stack([normal(n, scale=s / math.sqrt(n)) for s in scale])
    grads[:, 5] = 0
    p, m, v = start.astype(np.float64), np.zeros(n), np.zeros(n)
    norm, coef, path = [], [], []
    for t in range(steps):
        g = grads[t].astype(np.float64)
        norm.append(math.sqrt((g * g).sum()))
        coef.append(min(1.0, most / (norm[-1] + clip_eps)))
        g *= coef[-1]
        rate = lr * factor(t, steps, 3, 0.8)
        p = p - rate * wd * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        p = p - rate * (m / (1 - b1 ** (t + 1))) / (np.sqrt(v / (1 - b2 ** (t + 1))) + eps)
        path.append(p)
    assert 5 < sum(c < 1 for c in coef) < 15
    save("adamw", dict(start=start, grads=grads, norm=np.array(norm), coef=np.array(coef),
                       path=np.stack(path), exp_avg=m, exp_avg_sq=v))


MASK = 2**64 - 1


def bits(key, i):
    z = (key + (i + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def uniform(key, i):
    return (bits(key, i) >> 11) * 2.0**-53


def gauss(key, i, bound):
    while True:
        radius = math.sqrt(-2 * math.log(1 - uniform(key, 2 * i)))
        x = radius * math.cos(2 * math.pi * uniform(key, 2 * i + 1))
        if bound <= 0 or abs(x) <= bound:
            return x
        key = bits(key ^ 0xD1B54A32D192ED03, 0)


def init():
    """The first 64 values of each kind, 4 around the first that every bound redraws, and 4 from
    element 2^33 + 5 on, of tensor "model.x" with seed 7 and scale 1.5."""
    key = 0xCBF29CE484222325
    for c in b"model.x":
        key = ((key ^ c) * 0x100000001B3) & MASK
    key ^= (7 * 0xD1B54A32D192ED03) & MASK
    far = next(i for i in range(64, 10**6) if abs(gauss(key, i, 0)) > 3)
    at = [*range(64), *range(far - 1, far + 3), *range(2**33 + 5, 2**33 + 9)]
    out = dict(normal=[1.5 * gauss(key, i, 2 / 1.5) for i in at],
               free=[1.5 * gauss(key, i, 0) for i in at],
               three=[1.5 * gauss(key, i, 3) for i in at],
               log_uniform=[math.log(1 + 15 * uniform(key, i)) for i in at])
    out = {k: np.array(v) for k, v in out.items()}
    save("init", dict(far=np.array([far]), **out))


save("blocks", {**mix(0), **mix(1), **mix(4), **glu(), **head()})
adamw()
init()

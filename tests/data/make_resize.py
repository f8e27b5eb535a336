#!/usr/bin/env python3
"""Expected values for the tests of the reduction and of the resize rule: Pillow's own results.

usage: make_resize.py OUT_DIR      writes resize.safetensors; made with Pillow 9.4.0

N.in, N.out   [h, w, channels] a picture and Image.resize(BICUBIC) of it; 4 channels: RGBA
fit           [n, 9]  patch, merge, limit, side, h, w, then h', w' and the tokens of the image
"""
import json
import math
import os
import struct
import sys

import numpy as np
from PIL import Image

rng = np.random.default_rng(41)
NAMES = {np.dtype(np.uint8): "U8", np.dtype(np.int32): "I32"}


def save(folder, name, tensors):
    head, data = {}, b""
    for key, x in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
        head[key] = {"dtype": NAMES[x.dtype], "shape": list(x.shape),
                     "data_offsets": [len(data), len(data) + x.nbytes]}
        data += np.ascontiguousarray(x).tobytes()
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, name + ".safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def ramp(h, w, channels):
    """Slopes of its own for every channel, with some noise."""
    y, x = np.mgrid[:h, :w]
    slopes = np.stack([(3 + c) * x + (7 - 2 * c) * y + 40 * c for c in range(channels)], 2)
    return ((slopes + rng.integers(0, 9, slopes.shape)) % 256).astype(np.uint8)


def noise(h, w, channels):
    return rng.integers(0, 256, (h, w, channels), dtype=np.uint8)


def extremes(h, w, channels):
    """Only 0 and 255: the cubic leads beyond both ends."""
    return (255 * rng.integers(0, 2, (h, w, channels))).astype(np.uint8)


def holes(h, w, channels):
    """Bright colours under no alpha beside dark ones under full alpha, and all between."""
    x = noise(h, w, channels)
    x[..., 3] = rng.choice([0, 0, 1, 128, 254, 255, 255], (h, w))
    x[..., :3][x[..., 3] == 0] = 255
    return x


CASES = [  # picture, (h, w) before, after, channels
    (ramp, (40, 30), (20, 15), 3), (noise, (48, 64), (13, 17), 3), (noise, (37, 50), (36, 49), 3),
    (noise, (33, 21), (10, 21), 3), (noise, (21, 33), (21, 10), 3), (ramp, (80, 100), (28, 35), 3),
    (extremes, (60, 44), (23, 17), 3), (extremes, (30, 30), (29, 11), 3),
    (noise, (1, 200), (1, 29), 3), (noise, (200, 1), (7, 1), 3), (noise, (60, 5), (1, 1), 3),
    (noise, (9, 12), (9, 12), 3), (noise, (11, 8), (16, 21), 3), (ramp, (64, 64), (56, 56), 3),
    (holes, (40, 30), (20, 15), 4), (holes, (50, 37), (49, 36), 4), (holes, (31, 47), (8, 12), 4),
    (holes, (16, 19), (16, 19), 4), (extremes, (28, 28), (5, 5), 4),
]


def fit(patch, merge, limit, side, h, w):
    scale = min(1, math.sqrt(limit / (max(1, h // patch) * max(1, w // patch))),
                side * patch / h, side * patch / w)
    new = [min(side * patch, max(1, math.floor(n * scale))) for n in (h, w)]
    return [patch, merge, limit, side, h, w, *new,
            math.prod(-(-n // (patch * merge)) for n in new)]


def fits():
    release, debug = (14, 2, 65536, 512), (14, 2, 256, 16)
    sizes = [(1, 1), (1, 4000), (4000, 1), (20000, 20), (20, 20000), (15, 29), (28, 28), (29, 28),
             (27, 56), (3584, 3584), (3585, 3584), (3597, 3597), (3598, 3598), (4032, 3024),
             (7168, 1792), (7169, 1792), (28672, 4681), (4681, 28672), (224, 224), (225, 224),
             (480, 640), (1080, 1920), (13, 13), (14, 7183), (100, 17)]
    rows = [fit(*rule, *size) for rule in (release, debug) for size in sizes]
    for rule in (release, debug, (14, 1, 1000, 99), (7, 3, 40, 9)):
        for h, w in rng.integers(1, 9000, (40, 2)):
            rows.append(fit(*rule, int(h), int(w)))
    return np.array(rows, np.int32)


def main():
    out = {"fit": fits()}
    for i, (picture, before, after, channels) in enumerate(CASES):
        x = picture(*before, channels)
        y = Image.fromarray(x).resize(after[::-1], Image.BICUBIC)
        out[f"{i}.in"], out[f"{i}.out"] = x, np.array(y)
    save(sys.argv[1], "resize", out)


if __name__ == "__main__":
    main()

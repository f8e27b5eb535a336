#!/usr/bin/env python3
"""Expected values for the quantile rule: the quantile.* tensors of train_tiny.safetensors, which
another implementation computed, without the scores.

usage: make_balance.py FIXTURE_DIR OUT_DIR     writes balance.safetensors
"""
import json
import os
import struct
import sys

with open(os.path.join(sys.argv[1], "train_tiny.safetensors"), "rb") as f:
    head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    body = f.read()
out, data = {}, b""
for name, t in head.items():
    if not name.startswith("quantile.") or ".scores." in name:
        continue
    begin, end = t["data_offsets"]
    out[name] = {**t, "data_offsets": [len(data), len(data) + end - begin]}
    data += body[begin:end]
text = json.dumps(out).encode()
text += b" " * (-len(text) % 8)
with open(os.path.join(sys.argv[2], "balance.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + data)

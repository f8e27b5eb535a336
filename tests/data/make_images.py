#!/usr/bin/env python3
"""Small image files of every kind, and what Pillow makes of them.

usage: make_images.py OUT_DIR      writes images/*.png, images/*.jpg, images.safetensors
                                   made with Pillow 9.4.0

NAME.full, NAME.small   [h, w, 3] the file NAME after the preprocessing with patches of 4 pixels and
2 x 2 patches a token: as large as it is, and within 9 patches, 3 a side.  Files whose name begins
with bad_ have none.  PNG files are packed here by hand, as Pillow writes neither all depths nor
interlaced files; Pillow reads them all.
"""
import os
import struct
import sys
import zlib

import numpy as np
from PIL import Image

from make_resize import fit, save

rng = np.random.default_rng(43)
H, W = 13, 21
GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
CHANNELS = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}


def chunk(name, data):
    body = name + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def pack_rows(x, depth):
    """Filter 0 before each row; x [h, w, channels] of samples."""
    out = b""
    for row in x.reshape(x.shape[0], -1):
        if depth == 16:
            out += b"\0" + row.astype(">u2").tobytes()
            continue
        bits = np.unpackbits(row.astype(np.uint8)[:, None], axis=1)[:, 8 - depth:]
        out += b"\0" + np.packbits(bits.reshape(-1)).tobytes()
    return out


def png(x, colour, depth, before=(), after=(), interlaced=False, cut=0):
    """before, after: chunks around IDAT; cut: bytes of the first of two IDAT."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
              (1, 0, 2, 1)] if interlaced else [(0, 0, 1, 1)]
    parts = [x[y::dy, c::dx] for y, c, dy, dx in passes]
    body = zlib.compress(b"".join(pack_rows(p, depth) for p in parts if p.size), 9)
    head = struct.pack(">IIBBBBB", x.shape[1], x.shape[0], depth, colour, 0, 0, interlaced)
    data = [body[:cut], body[cut:]] if cut else [body]
    return b"".join([b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", head), *before,
                     *(chunk(b"IDAT", d) for d in data), *after, chunk(b"IEND", b"")])


def samples(colour, depth, h=H, w=W):
    y, x = np.mgrid[:h, :w]
    most = 2 ** depth
    return np.stack([(x * (1 + c) * most // w + y * (c + 2) + rng.integers(0, 2, (h, w))) % most
                     for c in range(CHANNELS[colour])], 2)


def text_chunks():
    return [chunk(b"gAMA", struct.pack(">I", 100000)),
            chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"twice " * 9)),
            chunk(b"tIME", bytes([7, 230, 1, 2, 3, 4, 5]))]


def png_files():
    colours = rng.integers(0, 256, (16, 3), dtype=np.uint8)
    plte = [chunk(b"PLTE", colours.tobytes())]
    trns = [chunk(b"tRNS", bytes([0, 255, 128, 7, 200]))]
    rgb = samples(RGB, 8)
    key = chunk(b"tRNS", struct.pack(">3H", *rgb[5, 7]))
    gray = samples(GRAY, 8)
    yield from ((f"gray{d}", png(samples(GRAY, d), GRAY, d)) for d in (1, 2, 4, 8))
    yield "gray_key", png(gray, GRAY, 8, [chunk(b"tRNS", struct.pack(">H", gray[6, 6, 0]))])
    yield "gray_alpha", png(samples(GRAY_ALPHA, 8), GRAY_ALPHA, 8)
    yield "rgb", png(rgb, RGB, 8)
    yield "rgb_key", png(rgb, RGB, 8, [key])
    yield "rgba", png(samples(RGBA, 8), RGBA, 8)
    yield "bad_palette1", png(samples(PALETTE, 1), PALETTE, 1, [chunk(b"PLTE", colours[:2].tobytes())])
    yield "bad_palette4", png(samples(PALETTE, 4), PALETTE, 4, plte)
    yield "bad_palette8_alpha", png(samples(PALETTE, 8) % 16, PALETTE, 8, plte + trns)
    yield "interlaced_rgba", png(samples(RGBA, 8), RGBA, 8, interlaced=True)
    yield "interlaced_gray1", png(samples(GRAY, 1, 5, 3), GRAY, 1, interlaced=True)
    yield "one_pixel", png(samples(RGB, 8, 1, 1), RGB, 8)
    yield "strip", png(samples(GRAY, 8, 1, 90), GRAY, 8)
    yield "chunks", png(rgb, RGB, 8, text_chunks(), text_chunks()[1:], cut=40)
    yield "bad_gray16", png(samples(GRAY, 16), GRAY, 16)
    yield "bad_rgb16", png(samples(RGB, 16), RGB, 16)


def write_jpegs(folder):
    x = np.array(Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
                 .resize((W, H), Image.BICUBIC))
    im = Image.fromarray(x)
    exif = Image.Exif()
    exif[0x112] = 6
    for name, mode, options in [
            ("jpeg_gray", "L", {}), ("jpeg_420", "RGB", {"subsampling": 2}),
            ("jpeg_444", "RGB", {"subsampling": 0, "quality": 90}),
            ("jpeg_progressive", "RGB", {"subsampling": 1, "progressive": True}),
            ("jpeg_exif", "RGB", {"exif": exif}), ("bad_cmyk", "CMYK", {})]:
        im.convert(mode).save(os.path.join(folder, name + ".jpg"), optimize=True, **options)


def preprocess(path, limit, side):
    im = Image.open(path)
    im = im.convert("RGBA" if "A" in im.mode or "transparency" in im.info else "RGB")
    h, w = fit(4, 2, limit, side, im.height, im.width)[6:8]
    if im.size != (w, h):
        im = im.resize((w, h), Image.BICUBIC)
    if im.mode == "RGBA":
        y, x = np.mgrid[:h, :w]
        board = np.where((x // 8 + y // 8) % 2, 180, 255).astype(np.uint8)
        under = Image.merge("RGB", [Image.fromarray(board)] * 3)
        under.paste(im, (0, 0), im)
        im = under
    return np.pad(np.array(im), ((0, -h % 8), (0, -w % 8), (0, 0)))


def main():
    folder, out = os.path.join(sys.argv[1], "images"), {}
    os.makedirs(folder, exist_ok=True)
    for name, data in png_files():
        with open(os.path.join(folder, name + ".png"), "wb") as f:
            f.write(data)
    write_jpegs(folder)
    for name in sorted(os.listdir(folder)):
        if name.startswith("bad_"):
            continue
        path = os.path.join(folder, name)
        out[name + ".full"] = preprocess(path, 65536, 512)
        out[name + ".small"] = preprocess(path, 9, 3)
    save(sys.argv[1], "images", out)


if __name__ == "__main__":
    main()

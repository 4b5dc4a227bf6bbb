"""Writes GRIB2 messages on a small Lambert grid, in 16-bit simple packing."""

import struct

import numpy as np

NY, NX = 6, 8


def message(values, level_type=1, level=0, discipline=0, category=0, number=0):
    """Encodes (y, x) values, rows from south to north, as a message; NaN is missing."""
    values = np.asarray(values, np.float64)
    sections = [
        _identification(discipline),
        _grid(*values.shape),
        _product(category, number, level_type, level),
        *_data(values),
    ]
    body = b"".join(sections) + b"7777"
    head = b"GRIB" + bytes([0, 0, discipline, 2]) + struct.pack(">Q", 16 + len(body))
    return head + body


def _section(number, content):
    return struct.pack(">IB", len(content) + 5, number) + content


def _identification(discipline):
    date = struct.pack(">HBBBBB", 2024, 1, 1, 0, 0, 0)
    return _section(1, struct.pack(">HHBBB", 7, 0, 2, 1, 1) + date + bytes([0, 1]))


def _grid(ny, nx):
    """Encodes template 3.30 with HRRR's projection and few, distant points."""
    shape = struct.pack(">B", 6) + bytes(15)
    first = struct.pack(">iI", 25_000_000, 240_000_000)
    lambert = struct.pack(
        ">BiIII", 8, 38_500_000, 262_500_000, 300_000_000, 300_000_000
    )
    scan = bytes([0, 0b0100_0000])
    cone = struct.pack(">iiiI", 38_500_000, 38_500_000, -90_000_000, 0)
    template = shape + struct.pack(">II", nx, ny) + first + lambert + scan + cone
    return _section(3, struct.pack(">BIBBH", 0, nx * ny, 0, 0, 30) + template)


def _product(category, number, level_type, level):
    surface = struct.pack(">BbI", level_type, 0, level) + bytes([255, 0]) + bytes(4)
    when = struct.pack(">HBBI", 0, 0, 1, 0)
    first = struct.pack(">BBBBB", category, number, 2, 0, 83)
    return _section(4, struct.pack(">HH", 0, 0) + first + when + surface)


def _data(values):
    real = np.isfinite(values).ravel()
    present = values.ravel()[real]
    low = np.float32(present.min())
    scale = int(np.ceil(np.log2(max(float(present.max() - low), 1e-9) / 65535)))
    packed = np.round((present - low) / 2.0**scale).astype(">u2").tobytes()
    exponent = abs(scale) | (0x8000 if scale < 0 else 0)
    head = struct.pack(">IHfHHBB", present.size, 0, low, exponent, 0, 16, 0)
    bitmap = bytes([255])
    if not real.all():
        bitmap = bytes([0]) + np.packbits(real).tobytes()
    return _section(5, head), _section(6, bitmap), _section(7, packed)

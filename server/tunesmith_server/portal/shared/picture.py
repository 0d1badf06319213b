"""Picture of a curve as PNG, for chat programs, which show no SVG.

The picture has 256 shades between the background and the colour of the line. The curve is drawn
column by column, because it covers one connected range of pixels in each column. The PNG file
stores the pixels row by row.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

WIDTH, HEIGHT = 1200, 630
"""Size in pixels that chat programs show without cutting."""
_MARGIN = 60
_RADIUS = 4.0
"""Half of the line's width in pixels."""
_BACKGROUND, _LINE = (0xFF, 0xFF, 0xFF), (0x41, 0x50, 0xC8)
_SOLID, _FILL = 255, 26
"""Shades of the line, and of the area below it."""
_BRUSH = tuple((dx, math.sqrt(_RADIUS**2 - dx**2)) for dx in range(-int(_RADIUS), int(_RADIUS) + 1))
"""Half of the brush's height at each column of the brush."""


@lru_cache(maxsize=64)
def curve(values: tuple[float, ...]) -> bytes:
    """Return the picture of a curve with equally spaced values. Values that are not finite give a
    gap in the line."""
    pixels = bytearray(WIDTH * HEIGHT)  # by columns
    for run in _runs(_heights(values)):
        _draw(pixels, _columns(run))
    rows = bytearray()
    for row in range(HEIGHT):
        rows.append(0)  # no filter
        rows += pixels[row::HEIGHT]
    shades = bytes(
        round(start + (end - start) * shade / _SOLID)
        for shade in range(_SOLID + 1)
        for start, end in zip(_BACKGROUND, _LINE, strict=True)
    )
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 3, 0, 0, 0)  # 8 bits, palette
    chunks = (
        (b"IHDR", header),
        (b"PLTE", shades),
        (b"IDAT", zlib.compress(rows, 6)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _heights(values: Sequence[float]) -> list[tuple[int, float | None]]:
    """Return column and row of each value; None for a value that is not finite."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    across = (WIDTH - 2 * _MARGIN) / max(1, len(values) - 1)
    down = HEIGHT - 2 * _MARGIN
    points: list[tuple[int, float | None]] = []
    for index, value in enumerate(values):
        # Halves, because the difference of two large values may not be finite.
        share = (value / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5
        row = HEIGHT - _MARGIN - share * down if math.isfinite(value) else None
        points.append((_MARGIN + round(index * across), row))
    return points


def _runs(points: Sequence[tuple[int, float | None]]) -> list[list[tuple[int, float]]]:
    """Split the points at missing values."""
    runs: list[list[tuple[int, float]]] = [[]]
    for column, row in points:
        if row is None:
            runs.append([])
        else:
            runs[-1].append((column, row))
    return [run for run in runs if run]


def _columns(run: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Return the vertical position of the line (row of pixels) in each column; the keys are
    columns."""
    rows = dict(run)
    for (left, start), (right, end) in pairwise(run):
        for column in range(left + 1, right):
            rows[column] = start + (end - start) * (column - left) / (right - left)
    return rows


def _draw(pixels: bytearray, rows: dict[int, float]) -> None:
    """Draw a line with a round brush, and the area below it."""
    bottom = HEIGHT - _MARGIN // 2
    reach = int(_RADIUS)
    for column in range(min(rows) - reach, max(rows) + reach + 1):
        touched = [(rows[column + dx], half) for dx, half in _BRUSH if column + dx in rows]
        top = min(row - half for row, half in touched)
        end = max(row + half for row, half in touched)
        at = column * HEIGHT
        first, last = math.floor(top), math.floor(end)
        if column in rows:
            pixels[at + last : at + bottom] = bytes([_FILL]) * (bottom - last)
        pixels[at + first + 1 : at + last] = bytes([_SOLID]) * max(0, last - first - 1)
        above = pixels[at + first]
        pixels[at + first] = max(above, round(_SOLID * (first + 1 - top)))
        pixels[at + last] = max(pixels[at + last], round(_SOLID * (end - last)))

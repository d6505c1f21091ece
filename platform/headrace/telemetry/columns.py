"""Packed columns: how a chunk of a series looks in one blob, and how points become buckets, level by level.

Level 0 rows are points (seq, t, step, value). A row of level k sums up FANOUT rows of level k-1: its first and last instant,
min, max, first, last and mean of the finite values, how many points it covers and how many of them are not finite. No numpy
object is ever pickled: a blob is a header, then each column's little-endian bytes, shuffled by byte position so that zlib finds
the slowly changing ones together. NaN and infinities keep their exact bits.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

CHUNK_ROWS = 4096  # rows in a sealed chunk, at every level
FANOUT = 16  # rows of one level that make a row of the next

_HEADER = struct.Struct("<BBBxI")  # format version, level is zero or above, compressed, rows
_FORMAT = 1

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """Buckets of one series in one attempt, oldest first. A point is a bucket of one."""

    seq: Ints  # of the last point covered
    t0: Floats
    t1: Floats
    step0: Ints
    step1: Ints
    low: Floats  # smallest finite value; NaN where there is none
    high: Floats
    first: Floats  # first and last value as they came, finite or not
    last: Floats
    mean: Floats  # of the finite values; NaN where there is none
    count: Ints  # points covered
    nonfinite: Ints

    def __len__(self) -> int:
        return len(self.seq)

    def slice(self, lo: int, hi: int) -> Self:
        """Rows lo..hi-1."""
        return type(self)(*(getattr(self, f.name)[lo:hi] for f in fields(self)))

    def where(self, mask: NDArray[np.bool_]) -> Self:
        """The rows for which mask holds."""
        return type(self)(*(getattr(self, f.name)[mask] for f in fields(self)))


_INT_COLUMNS = frozenset({"seq", "step0", "step1", "count", "nonfinite"})
_POINT_COLUMNS = ("seq", "t0", "step0", "first")


def from_points(seq: Ints, t: Floats, step: Ints, value: Floats) -> Rows:
    """Level 0 rows of points in order of seq."""
    finite = np.isfinite(value)
    shown = np.where(finite, value, np.nan)
    ones = np.ones(len(value), dtype=np.int64)
    return Rows(seq, t, t, step, step, shown, shown, value, value, shown, ones, (~finite).astype(np.int64))


def concatenate(parts: list[Rows]) -> Rows:
    """All rows of the parts, in the order given."""
    if not parts:
        return empty()
    return Rows(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Rows)))


def empty() -> Rows:
    """No rows: no data, which is not the same as zero."""
    columns: dict[str, Any] = {f.name: np.empty(0, dtype=np.int64 if f.name in _INT_COLUMNS else np.float64) for f in fields(Rows)}
    return Rows(**columns)


def reduce_at(rows: Rows, starts: NDArray[np.intp]) -> Rows:
    """One bucket for each run of rows that begins at `starts` (ascending, the first is 0)."""
    if not len(rows):
        return rows
    ends = np.append(starts[1:], len(rows)) - 1
    finite = rows.count - rows.nonfinite
    # fmin and fmax skip NaN, which marks buckets without a finite value
    low, high = np.fmin.reduceat(rows.low, starts), np.fmax.reduceat(rows.high, starts)
    weight = np.add.reduceat(finite, starts)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.reduceat(np.where(finite > 0, rows.mean, 0.0) * finite, starts)
    mean = np.divide(total, weight, out=np.full(len(starts), np.nan), where=weight > 0)
    # A sum of huge finite values may overflow although their mean does not: the bucket's middle stands in
    overflow = ~np.isfinite(mean) & (weight > 0)
    mean = np.where(overflow, low / 2 + high / 2, np.clip(mean, low, high))
    return Rows(
        rows.seq[ends],
        rows.t0[starts],
        rows.t1[ends],
        rows.step0[starts],
        rows.step1[ends],
        low,
        high,
        rows.first[starts],
        rows.last[ends],
        mean,
        np.add.reduceat(rows.count, starts),
        np.add.reduceat(rows.nonfinite, starts),
    )


def next_level(rows: Rows) -> Rows:
    """The rows of the level above: FANOUT to one. Called with a sealed chunk, whose length FANOUT divides."""
    return reduce_at(rows, np.arange(0, len(rows), FANOUT))


def bucket(rows: Rows, x: NDArray[np.float64], buckets: int) -> Rows:
    """At most `buckets` rows, each covering an equal stretch of x. x is not expected to fall along the rows."""
    if len(rows) <= buckets:
        return rows
    span = x[-1] - x[0]
    place = (x - x[0]) / span * buckets if span > 0 else np.arange(len(rows)) * buckets / len(rows)
    place = np.clip(np.nan_to_num(place), 0, buckets - 1).astype(np.int64)
    place = np.maximum.accumulate(place)  # a clock that steps back must not split buckets
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    return reduce_at(rows, starts)


def pack(rows: Rows, level: int, compress: bool = True) -> bytes:
    """The blob of a SeriesChunk. `compress` is off for the small pieces of one batch, which are merged soon."""
    names = _POINT_COLUMNS if level == 0 else tuple(f.name for f in fields(Rows))
    plain = b"".join(_shuffle(getattr(rows, name), name in _INT_COLUMNS) for name in names)
    body = zlib.compress(plain, 1) if compress else plain
    return _HEADER.pack(_FORMAT, min(level, 1), compress, len(rows)) + body


def unpack(blob: bytes | memoryview) -> Rows:
    """The inverse of `pack`. Raises ValueError for a blob of another format."""
    blob = bytes(blob)
    version, above, compressed, n = _HEADER.unpack_from(blob)
    if version != _FORMAT:
        raise ValueError(f"SeriesChunk.body: format {version} is not known; rebuild the attempt's series")
    plain = zlib.decompress(blob[_HEADER.size :]) if compressed else blob[_HEADER.size :]
    names = tuple(f.name for f in fields(Rows)) if above else _POINT_COLUMNS
    parts = {name: _unshuffle(plain[8 * n * i : 8 * n * (i + 1)], n, name in _INT_COLUMNS) for i, name in enumerate(names)}
    if above:
        return Rows(**parts)
    return from_points(parts["seq"], parts["t0"], parts["step0"], parts["first"])


def _shuffle(column: Floats | Ints, integer: bool) -> bytes:
    typed = np.ascontiguousarray(column, dtype="<i8" if integer else "<f8")
    return typed.view(np.uint8).reshape(-1, 8).T.tobytes()


def _unshuffle(plain: bytes, n: int, integer: bool) -> NDArray[Any]:
    columns = np.frombuffer(plain, dtype=np.uint8).reshape(8, n)
    return np.ascontiguousarray(columns.T).view("<i8" if integer else "<f8").reshape(n)

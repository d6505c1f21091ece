"""A run's history as files: every point, sample and log line, as Parquet, CSV or JSON lines, in pieces of bounded size.

Tables are made as Arrow record batches, once; the format only decides how they are written. Non-finite points keep their value:
no data is an empty cell, NaN is NaN. CSV cells that a spreadsheet would run as a formula begin with an apostrophe.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from django.db.models import Q

from headrace.experiments.models import Attempt, Run
from headrace.experiments.problems import BadInput
from headrace.telemetry import codec
from headrace.telemetry.columns import unpack
from headrace.telemetry.derive import LAG_PREFIX, SPAN_PREFIX
from headrace.telemetry.models import EventBatch, LogChunk, Sample, Series, SeriesChunk
from headrace.telemetry.series import successor_starts
from headrace.telemetry.store import read_log_lines
from workers.contract.events import encode_number

ROWS = 4096
_TIME = pa.timestamp("us", tz="UTC")
SERIES = pa.schema(
    [
        ("attempt", pa.int32()),
        ("name", pa.string()),
        ("seq", pa.int64()),
        ("time", _TIME),
        ("step", pa.int64()),
        ("value", pa.float64()),
        ("superseded", pa.bool_()),
    ]
)
SAMPLE_FIELDS = (
    *("seq", "t", "step", "group", "episode", "prompt_id", "index", "outcome", "drop_reason", "finish_reason", "reward", "advantage"),
    *("version_min", "version_max", "version_trained", "token_count", "prompt", "completion", "answer_expected", "answer_given"),
)
_INTEGERS = ("seq", "step", "index", "version_min", "version_max", "version_trained", "token_count")
_KINDS = {"t": _TIME, "reward": pa.float64(), "advantage": pa.float64(), **dict.fromkeys(_INTEGERS, pa.int64())}
SAMPLES = pa.schema([("attempt", pa.int32()), *(("time" if f == "t" else f, _KINDS.get(f, pa.string())) for f in SAMPLE_FIELDS)])
LOGS = pa.schema(
    [
        ("attempt", pa.int32()),
        ("seq", pa.int64()),
        ("time", _TIME),
        ("level", pa.string()),
        ("source", pa.string()),
        ("message", pa.string()),
    ]
)
EVENTS = pa.schema(
    [("attempt", pa.int32()), ("seq", pa.int64()), ("time", _TIME), ("step", pa.int64()), ("kind", pa.string()), ("data", pa.string())]
)


def export(run: Run, what: str, form: str, names: Sequence[str] = ()) -> Iterator[bytes]:
    """The bytes of one table of a run whose access the caller has checked. `names`: these series alone.

    Raises BadInput for a table or format that does not exist.
    """
    if what not in TABLES:
        raise BadInput("no such table", field="what", value=what, cure=f"one of {', '.join(TABLES)}")
    if form not in FORMATS:
        raise BadInput("no such format", field="format", value=form, cure=f"one of {', '.join(FORMATS)}")
    schema, rows = TABLES[what]
    return FORMATS[form][0](schema, rows(run, names))


def content_type(form: str) -> str:
    return FORMATS[form][1]


def _series(run: Run, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Every stored point, by attempt and name, oldest first."""
    attempts = _attempts(run)
    starts = successor_starts(attempts)
    for attempt in attempts:
        found = Series.objects.for_team(run.team_id).filter(attempt=attempt).order_by("name")
        for series in (
            found.filter(name__in=names) if names else found.exclude(Q(name__startswith=LAG_PREFIX) | Q(name__startswith=SPAN_PREFIX))
        ):
            chunks = SeriesChunk.objects.for_team(run.team_id).filter(series=series, level=0).order_by("index")
            for body in chunks.values_list("body", flat=True).iterator(chunk_size=8):
                rows = unpack(body)
                last = starts[attempt.pk]
                columns = [
                    pa.array([attempt.number] * len(rows), pa.int32()),
                    pa.array([series.name] * len(rows), pa.string()),
                    pa.array(rows.seq),
                    pa.array((rows.t0 * 1e6).astype("int64")).cast(_TIME),
                    pa.array(rows.step0),
                    pa.array(rows.first),
                    pa.array([False] * len(rows)) if last is None else pa.array(rows.step0 > last),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=SERIES)


def _samples(run: Run, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    rows = Sample.objects.for_team(run.team_id).filter(attempt__run=run).order_by("attempt__number", "seq")
    wanted = rows.values_list("attempt__number", *SAMPLE_FIELDS)
    yield from _batches(SAMPLES, ([number, seq, _moment(t), *rest] for number, seq, t, *rest in wanted.iterator(chunk_size=500)), 500)


def _logs(run: Run, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    def lines() -> Iterator[list[Any]]:
        for attempt in _attempts(run):
            chunks = LogChunk.objects.for_team(run.team_id).filter(attempt=attempt).order_by("first_seq")
            for body in chunks.values_list("body", flat=True).iterator(chunk_size=8):
                for line in read_log_lines(body):
                    yield [attempt.number, line.seq, _moment(line.t), line.level, line.source, line.message]

    yield from _batches(LOGS, lines())


def _events(run: Run, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    def rows() -> Iterator[list[Any]]:
        for attempt in _attempts(run):
            stored = EventBatch.objects.for_team(run.team_id).filter(attempt=attempt).order_by("first_seq")
            for batch in stored.iterator(chunk_size=4):
                for event in codec.unpack(batch.body, batch.first_seq, batch.codec).events():
                    data = json.dumps(event.data, separators=(",", ":"), ensure_ascii=False)
                    yield [attempt.number, event.seq, _moment(event.t), event.step, event.kind, data]

    yield from _batches(EVENTS, rows(), 500)


def _attempts(run: Run) -> list[Attempt]:
    return list(Attempt.objects.for_team(run.team_id).filter(run=run).order_by("number"))


def _batches(schema: pa.Schema, rows: Iterator[Sequence[Any]], size: int = ROWS) -> Iterator[pa.RecordBatch]:
    held: list[Sequence[Any]] = []
    for row in rows:
        held.append(row)
        if len(held) == size:
            yield _batch(schema, held)
            held = []
    if held:
        yield _batch(schema, held)


def _batch(schema: pa.Schema, rows: list[Sequence[Any]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)


def _moment(t: float) -> datetime:
    return datetime.fromtimestamp(t, UTC)


class _Pipe(io.RawIOBase):
    """Where Parquet is written to and taken from, a piece at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self.held += piece
        return len(piece)

    def take(self) -> bytes:
        piece, self.held = bytes(self.held), bytearray()
        return piece


def _parquet(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    pipe = _Pipe()
    with pq.ParquetWriter(pipe, schema, compression="zstd") as writer:
        for group in _gathered(batches):
            writer.write_table(pa.Table.from_batches(group, schema))
            yield pipe.take()
    yield pipe.take()


def _gathered(batches: Iterator[pa.RecordBatch], rows: int = 16 * ROWS, size: int = 16 << 20) -> Iterator[list[pa.RecordBatch]]:
    """Row groups of some size: one for each small batch would make a file of headers. Of long texts `size` bytes are enough."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(len(part) for part in held) >= rows or sum(part.nbytes for part in held) >= size:
            yield held
            held = []
    if held:
        yield held


def _csv(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    sink = io.StringIO()
    writer = csv.writer(sink)
    writer.writerow(schema.names)
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            writer.writerow([cell(value) for value in row])
        yield sink.getvalue().encode()
        sink.seek(0)
        sink.truncate()
    yield sink.getvalue().encode()


def _jsonl(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        yield "".join(json.dumps(_plain(row), ensure_ascii=False, separators=(",", ":")) + "\n" for row in batch.to_pylist()).encode()


def cell(value: Any) -> Any:
    """One CSV cell. Text that a spreadsheet would take for a formula is quoted with an apostrophe."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has neither times nor NaN."""
    return {key: _json(value) for key, value in row.items()}


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return encode_number(value) if isinstance(value, float) else value


Table = tuple[pa.Schema, Callable[[Run, Sequence[str]], Iterator[pa.RecordBatch]]]
TABLES: dict[str, Table] = {"series": (SERIES, _series), "samples": (SAMPLES, _samples), "logs": (LOGS, _logs), "events": (EVENTS, _events)}
FORMATS: dict[str, tuple[Callable[[pa.Schema, Iterator[pa.RecordBatch]], Iterator[bytes]], str]] = {
    "parquet": (_parquet, "application/vnd.apache.parquet"),
    "csv": (_csv, "text/csv; charset=utf-8"),
    "jsonl": (_jsonl, "application/x-ndjson"),
}
# What a page says of each table.
WORDS = {
    "series": "every point of every series, with time and step",
    "samples": "the samples kept: prompt, completion, reward, advantage, versions",
    "logs": "every log line",
    "events": "all events as the run told them",
}

"""Frames between the driver and a child process: 4 bytes of length, then msgpack of JSON-like values. Never pickle."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import msgpack

from workers.contract import errors
from workers.contract.errors import EngineError, HeadraceError

_LENGTH = struct.Struct("<I")
MAX_FRAME = 1 << 30


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Raises asyncio.IncompleteReadError when the other side is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MAX_FRAME:
        raise EngineError("a message is too large", field="frame", value=length, cure=f"at most {MAX_FRAME} bytes")
    frame: dict[str, Any] = msgpack.unpackb(await reader.readexactly(length), strict_map_key=False)
    return frame


def write_frame(writer: asyncio.StreamWriter, frame: dict[str, Any]) -> None:
    body = msgpack.packb(frame)
    writer.write(_LENGTH.pack(len(body)) + body)


def error_to_wire(error: BaseException) -> dict[str, Any]:
    if isinstance(error, HeadraceError):
        return error.as_dict()
    return {
        "type": type(error).__name__,
        "message": f"{type(error).__name__}: {error}",
        "field": None,
        "value": None,
        "cure": None,
        "retryable": False,
    }


def error_from_wire(data: dict[str, Any]) -> HeadraceError:
    """The same class of error as on the other side; anything unknown becomes EngineError."""
    kind = getattr(errors, data["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
        kind = EngineError
    error: HeadraceError = kind(data["message"], field=data["field"], cure=data["cure"], retryable=data["retryable"])
    error.value = data["value"]
    return error

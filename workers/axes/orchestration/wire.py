"""Frames between the driver and a role: msgpack of JSON-like values, never pickle. On a socket, 4 bytes of length go before each."""

from __future__ import annotations

import asyncio
import errno
import struct
from typing import Any, TypeVar

import msgpack

from workers.contract import errors
from workers.contract.errors import EngineError, HeadraceError, StorageError

_LENGTH = struct.Struct("<I")
MAX_FRAME = 1 << 30
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
E = TypeVar("E", bound=HeadraceError)


def pack(frame: Any) -> bytes:
    """Raises where the frame holds what msgpack cannot carry, or is too large."""
    body = bytes(msgpack.packb(frame))
    if len(body) > MAX_FRAME:
        raise EngineError("a message is too large", field="frame", value=len(body), cure=f"at most {MAX_FRAME} bytes")
    return body


def unpack(body: bytes) -> Any:
    return msgpack.unpackb(body, strict_map_key=False)


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Raises asyncio.IncompleteReadError when the other side is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MAX_FRAME:
        raise EngineError("a message is too large", field="frame", value=length, cure=f"at most {MAX_FRAME} bytes")
    frame: dict[str, Any] = unpack(await reader.readexactly(length))
    return frame


def write_body(writer: asyncio.StreamWriter, body: bytes) -> None:
    """One packed frame onto a socket."""
    writer.write(_LENGTH.pack(len(body)) + body)


def error_to_wire(error: BaseException) -> dict[str, Any]:
    """Always packable: a text that is not valid Unicode is escaped."""
    if isinstance(error, OSError) and error.errno in OF_THE_DISK:
        error = StorageError.of(error)
    if isinstance(error, HeadraceError):
        data = error.as_dict()
    else:
        data = {
            "type": type(error).__name__,
            "message": f"{type(error).__name__}: {error}",
            "field": None,
            "value": None,
            "cure": None,
            "retryable": False,
        }
    return {name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value for name, value in data.items()}


def error_from_wire(data: dict[str, Any]) -> HeadraceError:
    """The same class of error as on the other side; anything unknown becomes EngineError."""
    kind = getattr(errors, data["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
        kind = EngineError
    return _made(kind, data)


def copy_of(error: E) -> E:
    """A fresh error for each caller: one exception object must not be raised in several tasks."""
    return _made(type(error), error.__dict__)


def _made(kind: type[E], data: dict[str, Any]) -> E:
    error = kind(data["message"], field=data["field"], cure=data["cure"], retryable=data["retryable"])
    error.value = data["value"]
    return error

"""Errors that name the field, the value and the cure, and say whether retrying helps."""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of `python -m workers` (documented in its --help)."""

    OK = 0
    FAILED = 1  # the run started and failed; the first cause is in the spool and in summary.json
    USAGE = 2  # a wrong command line, config, preset or data file; nothing was started
    CANCELLED = 3  # cancelled on request; the last complete checkpoint stands
    FENCED = 4  # a newer attempt of the same run exists; this one stopped
    ENVIRONMENT = 5  # a missing package, full disk, unreachable model or cluster


class HeadraceError(Exception):
    """Root of every error a user may see.

    field: dotted config path or input name; value: what was given; cure: what to do about it;
    retryable: whether doing the same again may help.
    """

    exit_code = ExitCode.FAILED

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: Any = None,
        cure: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.value = value
        self.cure = cure
        self.retryable = retryable

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        given = f" (given: {_shorten(self.value)})" if self.value is not None else ""
        cure = f" -> {self.cure}" if self.cure else ""
        return f"{where}{self.message}{given}{cure}"

    def as_dict(self) -> dict[str, Any]:
        """The JSON form used by events, forms and the API."""
        return {
            "type": type(self).__name__,
            "message": self.message,
            "field": self.field,
            "value": None if self.value is None else _shorten(self.value),
            "cure": self.cure,
            "retryable": self.retryable,
        }


class ConfigError(HeadraceError, ValueError):
    """A config that cannot run. `problems` holds every fault found, this error being the first."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, problems: list[HeadraceError] | None = None, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.problems: list[HeadraceError] = problems or [self]


class DataError(HeadraceError, ValueError):
    """A data file or dataset that cannot be used."""

    exit_code = ExitCode.USAGE


class EnvironmentMissing(HeadraceError, RuntimeError):
    """Something the machine lacks: a package, disk space, a model, a cluster."""

    exit_code = ExitCode.ENVIRONMENT


class StorageError(HeadraceError, OSError):
    """A disk that takes no more, or fails. Told by another process, it is the same error here: what waits for room goes on waiting."""

    @classmethod
    def of(cls, error: OSError) -> StorageError:
        where = f" ({error.filename})" if error.filename else ""
        cure = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "see the system's log: the disk may be failing"
        told = cls(f"{error.strerror or error}{where}", cure=cure, retryable=True)
        told.errno = error.errno
        return told


class EngineError(HeadraceError, RuntimeError):
    """A fault in generation, training or weight synchronisation."""


class DigestMismatch(EngineError):
    """The bytes received are not the bytes published; the old version keeps serving."""


class CheckpointError(HeadraceError, RuntimeError):
    """A checkpoint that is torn, missing or belongs to another run."""


class NonFinite(EngineError):
    """Too many consecutive steps had a non-finite loss or gradient."""


class Cancelled(HeadraceError):
    """The run was cancelled on request."""

    exit_code = ExitCode.CANCELLED


class Fenced(HeadraceError):
    """A newer attempt holds the fence."""

    exit_code = ExitCode.FENCED


def _shorten(value: Any, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."

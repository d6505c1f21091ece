"""The states of runs and attempts, the moves between them, and the guard that leaves `lifecycle.py` as the only writer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar

from django.db import models

M = TypeVar("M", bound=models.Model)
_writing = ContextVar("headrace_lifecycle_writing", default=False)


class RunState(models.TextChoices):
    """queued -> launching -> running (<-> paused) -> (stopping) -> succeeded | failed | cancelled | lost."""

    QUEUED = "queued", "Queued"
    LAUNCHING = "launching", "Launching"
    RUNNING = "running", "Running"
    PAUSED = "paused", "Paused"
    STOPPING = "stopping", "Stopping"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    LOST = "lost", "Lost"

    @classmethod
    def over(cls) -> frozenset[str]:
        return frozenset({cls.SUCCEEDED, cls.FAILED, cls.CANCELLED, cls.LOST})

    @classmethod
    def active(cls) -> frozenset[str]:
        return frozenset(cls.values) - cls.over()


class AttemptState(models.TextChoices):
    PENDING = "pending", "Pending"
    SUBMITTED = "submitted", "Submitted"
    RUNNING = "running", "Running"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    LOST = "lost", "Lost"

    @classmethod
    def over(cls) -> frozenset[str]:
        return frozenset({cls.SUCCEEDED, cls.FAILED, cls.CANCELLED, cls.LOST})


_R = RunState
RUN_MOVES: dict[str, frozenset[str]] = {
    # queued -> running: the job's first event may overtake the launcher's own note, and an upload is never launched.
    _R.QUEUED: frozenset({_R.LAUNCHING, _R.RUNNING, _R.FAILED, _R.CANCELLED}),
    _R.LAUNCHING: frozenset({_R.RUNNING, _R.STOPPING, _R.SUCCEEDED, _R.FAILED, _R.CANCELLED, _R.LOST}),
    _R.RUNNING: frozenset({_R.PAUSED, _R.STOPPING, _R.SUCCEEDED, _R.FAILED, _R.CANCELLED, _R.LOST}),
    # The driver says that it is paused and that it goes on; what the button asks for is in `Run.control`.
    _R.PAUSED: frozenset({_R.RUNNING, _R.STOPPING, _R.SUCCEEDED, _R.FAILED, _R.CANCELLED, _R.LOST}),
    _R.STOPPING: frozenset({_R.SUCCEEDED, _R.FAILED, _R.CANCELLED, _R.LOST}),
    # over -> queued is a resume: a new attempt with a higher fence. A run that succeeded goes on with a larger budget.
    _R.SUCCEEDED: frozenset({_R.QUEUED}),
    _R.FAILED: frozenset({_R.QUEUED}),
    _R.CANCELLED: frozenset({_R.QUEUED}),
    # A lost attempt's spool may still arrive and tell how it really ended.
    _R.LOST: frozenset({_R.QUEUED, _R.SUCCEEDED, _R.FAILED, _R.CANCELLED}),
}

_A = AttemptState
ATTEMPT_MOVES: dict[str, frozenset[str]] = {
    _A.PENDING: frozenset({_A.SUBMITTED, _A.RUNNING, _A.FAILED, _A.CANCELLED, _A.LOST}),
    _A.SUBMITTED: frozenset({_A.RUNNING, _A.SUCCEEDED, _A.FAILED, _A.CANCELLED, _A.LOST}),
    _A.RUNNING: frozenset({_A.SUCCEEDED, _A.FAILED, _A.CANCELLED, _A.LOST}),
    _A.SUCCEEDED: frozenset(),
    _A.FAILED: frozenset(),
    _A.CANCELLED: frozenset(),
    _A.LOST: frozenset({_A.SUCCEEDED, _A.FAILED, _A.CANCELLED}),
}


class StateWrittenElsewhere(TypeError):
    """Something other than `lifecycle.py` tried to change a state."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} would change a state past the state machine -> call headrace.experiments.lifecycle")


@contextmanager
def lifecycle_writes() -> Iterator[None]:
    """Opened by `lifecycle.py` around its own save, and by nothing else (a test reads the source for it)."""
    token = _writing.set(True)
    try:
        yield
    finally:
        _writing.reset(token)


class StateGuardedQuerySet(models.QuerySet[M]):
    """Refuses the ways round save(): update, bulk_update, bulk_create."""

    def update(self, **values: Any) -> int:
        if {"state", "state_since"} & values.keys() and not _writing.get():
            raise StateWrittenElsewhere(f"{self.model.__name__}.update()")
        return super().update(**values)

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_update(self, objs: Iterable[Any], fields: Iterable[str], batch_size: int | None = None) -> int:
        fields = list(fields)
        if {"state", "state_since"} & set(fields):
            raise StateWrittenElsewhere(f"{self.model.__name__}.bulk_update()")
        return super().bulk_update(objs, fields, batch_size)

    def bulk_create(self, objs: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
        rows = list(objs)
        for row in rows:
            row.check_state_untouched()
        if {"state", "state_since"} & set(kwargs.get("update_fields") or ()):
            raise StateWrittenElsewhere(f"{self.model.__name__}.bulk_create()")
        return super().bulk_create(rows, *args, **kwargs)


class StateGuardedManager(models.Manager[M]):
    """Default manager of models with a guarded state."""

    _queryset_class = StateGuardedQuerySet


class StateGuarded(models.Model):
    """A model whose `state` only `lifecycle.py` writes. Remembers the state it was loaded with."""

    INITIAL_STATE: ClassVar[str]
    state: Any
    _loaded_state: str | None = None

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.check_state_untouched()
        if not self._state.adding and not _writing.get():
            # An ordinary save never writes the state columns: a copy loaded before a transition must not undo it.
            kwargs["update_fields"] = self._fields_to_save(kwargs.get("update_fields"))
        super().save(*args, **kwargs)
        self._loaded_state = self.__dict__.get("state")

    @classmethod
    def from_db(cls, db: str | None, field_names: Any, values: Any, **options: Any) -> Any:
        instance = super().from_db(db, field_names, values, **options)
        # A deferred state is left alone: reading it here would cost a query for every row.
        instance._loaded_state = instance.__dict__.get("state")
        return instance

    def refresh_from_db(self, *args: Any, **kwargs: Any) -> None:
        super().refresh_from_db(*args, **kwargs)
        self._loaded_state = self.__dict__.get("state")

    def check_state_untouched(self) -> None:
        """Raises unless the state is the initial one of a new row or the one that was loaded."""
        if _writing.get():
            return
        if self._state.adding:
            if self.state != self.INITIAL_STATE:
                raise StateWrittenElsewhere(f"a new {type(self).__name__} in state {self.state!r}")
        elif "state" in self.__dict__ and self.state != self._loaded_state:
            raise StateWrittenElsewhere(f"{type(self).__name__}.save() with state {self._loaded_state!r} -> {self.state!r}")

    def _fields_to_save(self, asked: Iterable[str] | None) -> list[str]:
        if asked is not None:
            if {"state", "state_since"} & set(asked):
                raise StateWrittenElsewhere(f"{type(self).__name__}.save(update_fields=...)")
            return list(asked)
        left_out = self.get_deferred_fields() | {"id", "state", "state_since"}
        return [f.name for f in self._meta.concrete_fields if f.name not in left_out and f.attname not in left_out]

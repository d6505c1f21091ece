"""A small Ray actor that holds references to published weights by name. It imports neither torch nor the engine."""

from __future__ import annotations

from typing import Any

GENERATIONS_KEPT = 2  # an engine may still be reading the last but one


class Shelf:
    """Made by the trainer's `ObjectStoreTransport`; it ends with its maker, and with it the last references."""

    def __init__(self) -> None:
        self._held: dict[str, list[Any]] = {}

    def put(self, key: str, references: list[Any]) -> None:
        """The references come inside a list, so that Ray hands them on as they are and does not fetch what they stand for."""
        self._held[key] = references
        while len(self._held) > GENERATIONS_KEPT:
            del self._held[next(iter(self._held))]

    def take(self, key: str) -> list[Any]:
        """Empty where there is no such publish, or no longer."""
        return self._held.get(key, [])

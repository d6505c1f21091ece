"""Weights as a file from which a new engine process starts; see `orchestration.restarting` for who ends the old one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from workers.axes.transport.filesystem import FilesystemTransport
from workers.records import Manifest


class RestartTransport(FilesystemTransport):
    """The road over a folder, taken by each engine once: before it serves its first request."""

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, payload: str, receivers: list[str]) -> Manifest:
        """Called by the trainer at each publish; the file is whole and on disk before its name exists."""
        return replace(super().send(tensors, version, payload, receivers), transport="restart")

"""One payload as one run of bytes, in the safetensors layout, and back with its digest checked. Both transports use it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from workers.axes.transport.digest import digest_of
from workers.contract.errors import DigestMismatch, EngineError
from workers.records import Manifest


def pack(tensors: Mapping[str, torch.Tensor]) -> tuple[bytes, str]:
    """Called by a sender: the bytes to carry and the digest of what they hold."""
    if not tensors:
        raise EngineError("a publish without tensors", field="transport.payload", value=0, cure="publish at least one adapter tensor")
    private = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(private), digest_of(private)


def unpack(data: bytes, manifest: Manifest) -> dict[str, torch.Tensor]:
    """Called by a receiver with the bytes it read. Raises DigestMismatch where they are not the bytes published."""
    if len(data) != manifest.bytes:
        raise _mismatch(manifest, f"{len(data)} bytes arrived where {manifest.bytes} were published")
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise _mismatch(manifest, f"the payload cannot be read: {error}") from error
    digest = digest_of(tensors)
    if digest != manifest.digest:
        raise _mismatch(manifest, f"the digest of the bytes received is {digest[:16]}, published was {manifest.digest[:16]}")
    return tensors


def _mismatch(manifest: Manifest, message: str) -> DigestMismatch:
    return DigestMismatch(
        message, field="transport", value=f"version {manifest.version}", cure="publish again; the old version keeps serving", retryable=True
    )

"""collective_bucketed: the process group of `collective`, with tensors packed in flat buckets: few messages for many tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from workers.axes.transport import payload as layout
from workers.axes.transport.collective import CollectiveTransport, Image, Left
from workers.records import Manifest


class BucketedCollectiveTransport(CollectiveTransport):
    """The whole image, header included, in buckets of `bucket_mb`; a receiver holds one bucket beside its tensors."""

    kind = "collective_bucketed"

    def _describe(self, image: Image) -> dict[str, Any]:
        return {"bucket_bytes": self._bucket_bytes}

    def _size(self, image: Image) -> int:
        return image.bytes

    def _pieces(self, image: Image) -> Iterator[memoryview]:
        return image.buckets(self._bucket_bytes)

    def _lengths(self, manifest: Manifest) -> list[int]:
        bucket = int(manifest.handle["bucket_bytes"])
        return [min(bucket, manifest.bytes - start) for start in range(0, manifest.bytes, bucket)]

    def _take_in(self, left: Left, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Reads out of one bucket after another; the digest grows with each tensor."""
        buffer = bytearray(min(int(manifest.handle["bucket_bytes"]), manifest.bytes))
        unread = memoryview(b"")

        def read(view: memoryview) -> int:
            nonlocal unread
            if not len(unread):
                if not left:
                    return 0
                unread = memoryview(buffer)[: left.next]
                left.take(unread)
            count = min(len(view), len(unread))
            view[:count] = unread[:count]
            unread = unread[count:]
            return count

        return layout.unpack(read, manifest)

    @property
    def _bucket_bytes(self) -> int:
        return max(1, int(self._link.options.bucket_mb * 1e6))

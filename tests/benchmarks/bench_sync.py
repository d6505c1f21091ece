"""What a publish costs along each road on the CPU: export (until `send` returns), transfer (until every engine has it), total.

    python -m tests.benchmarks.bench_sync [--sizes 10 270] [--engines 1] [--publishes 5] [--kinds shared_memory http ...]

Trainer and engines are processes of their own, as in a run; sizes are MB of bfloat16 in tensors of a language model's shapes.
The first publish opens ports, groups and segments; it is left out. The medians of the others are printed as one table.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import torch

from tests.workers.transport_rig import OtherProcess, transport
from workers.contract.axes import TransportKind
from workers.contract.flow import Transport

# cuda_ipc needs a GPU; restart is filesystem plus the start of an engine.
KINDS = [kind for kind in get_args(TransportKind) if kind not in ("cuda_ipc", "restart")]
BUCKET_MB = float(Transport().bucket_mb)


def weights(megabytes: float) -> dict[str, torch.Tensor]:
    """One large tensor in ten parts (the embedding), the rest in equal layers."""
    count = int(megabytes * 1e6 / 2)
    sizes = {"embedding": count // 5, **{f"layers.{index:02}": count * 4 // 5 // 210 for index in range(210)}}
    return {name: torch.randn(max(size, 1)).bfloat16() for name, size in sizes.items()}


@contextlib.contextmanager
def ray_cluster(store_bytes: int) -> Iterator[str]:
    from workers import cluster  # noqa: F401, settles Ray's settings before it is imported

    import ray  # isort: skip

    with tempfile.TemporaryDirectory(prefix="hr-ray-", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=store_bytes,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
            log_to_driver=False,
            logging_level="error",
        )
        yield str(ray.get_runtime_context().gcs_address)
        ray.shutdown()


def measure(kind: str, megabytes: float, engines: int, publishes: int) -> tuple[float, float]:
    """Median (export, transfer) in seconds."""
    names = [f"generator/{index}" for index in range(engines)]
    tensors = weights(megabytes)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environment = {}
        if kind == "object_store":
            store_bytes = max(100_000_000, int(4e6 * megabytes))
            environment["RAY_ADDRESS"] = stack.enter_context(ray_cluster(store_bytes))
        sender = transport(kind, "trainer", folder, BUCKET_MB)
        stack.callback(sender.close)
        ends = [OtherProcess(kind, name, folder, environment, BUCKET_MB) for name in names]
        for end in ends:
            stack.callback(end.end)
        pool = stack.enter_context(ThreadPoolExecutor(engines))
        taken = []
        for version in range(1, publishes + 2):
            began = time.perf_counter()
            manifest = sender.send(tensors, version, "full", names)
            exported = time.perf_counter()
            answers = list(pool.map(lambda end, manifest=manifest: end.receive(manifest), ends))
            taken.append((exported - began, time.perf_counter() - exported))
            if answers != [manifest.digest] * engines:
                raise SystemExit(f"{kind}: the payload did not arrive: {answers}")
    return statistics.median(export for export, _ in taken[1:]), statistics.median(transfer for _, transfer in taken[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=[10, 270], help="MB; an adapter, and every weight of a small model")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--publishes", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| transport | MB | export ms | transfer ms | total ms | ({arguments.engines} engines, load {os.getloadavg()[0]:.1f})")
    print("|---|---:|---:|---:|---:|")
    for kind in arguments.kinds:
        for size in arguments.sizes:
            export, transfer = measure(kind, size, arguments.engines, arguments.publishes)
            print(f"| {kind} | {size:g} | {export * 1e3:.0f} | {transfer * 1e3:.0f} | {(export + transfer) * 1e3:.0f} |", flush=True)


if __name__ == "__main__":
    main()

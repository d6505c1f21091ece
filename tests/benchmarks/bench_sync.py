"""What a publish costs along each road on the CPU, from the trainer's first byte until the engine serves the new version.

    python -m tests.benchmarks.bench_sync [--payloads adapter full] [--publishes 5] [--kinds shared_memory http ...] [--quick]

Trainer and engine are processes of their own, as in a run; the engine is the one that decodes. `adapter` is LoRA of rank 16 on
all seven linears of SmolLM2-135M, `full` all its weights. The first two publishes open ports, groups and segments; they are left out.
export: until `send` returns; transfer: reading, digest checked, and making it ready to serve; apply: until the flip; total: all of
it and the way between the processes. A second table stands under decoding; a third tells what the digest costs. Medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import load_file

from tests.benchmarks.shown import ROOT, circumstances, table
from tests.benchmarks.sync_digest import without_digest
from tests.benchmarks.sync_engine import RUN
from workers import models, registry
from workers.axes.transport.base import Link
from workers.contract.axes import TransportKind
from workers.contract.config import RunConfig
from workers.records import Manifest, to_wire
from workers.rollout.torch.shape import Shape, read_shape
from workers.tiny import make_tiny_model

# cuda_ipc needs a GPU; restart is filesystem plus the start of an engine.
KINDS = [kind for kind in get_args(TransportKind) if kind not in ("cuda_ipc", "restart")]
PAYLOADS = {"adapter": "adapter_only", "full": "off"}  # and what learns then
WARM, RANK = 2, 16


def adapter(shape: Shape) -> dict[str, torch.Tensor]:
    """Random LoRA matrices by PEFT's names: A (rank, in), B (out, rank), bfloat16."""
    hidden, wide = shape.hidden, shape.intermediate
    sizes = {f"self_attn.{name}_proj": (hidden, rows) for name, rows in zip("qkv", (shape.query_rows, *[shape.kv_rows] * 2), strict=True)}
    sizes |= {"self_attn.o_proj": (shape.query_rows, hidden), "mlp.down_proj": (wide, hidden)}
    sizes |= {f"mlp.{name}_proj": (hidden, wide) for name in ("gate", "up")}
    tensors = {}
    for layer in range(shape.layers):
        for module, (inputs, outputs) in sizes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = (torch.randn(RANK, inputs) / inputs**0.5).bfloat16()
            tensors[f"{name}.lora_B.weight"] = (torch.randn(outputs, RANK) * 1e-4).bfloat16()
    return tensors


def weights(model: Path) -> dict[str, torch.Tensor]:
    """Every weight in bfloat16; a head tied to the embedding is not named again."""
    found = {name: tensor for path in sorted(model.glob("*.safetensors")) for name, tensor in load_file(path).items()}
    return {name: tensor.bfloat16() for name, tensor in found.items() if name != "lm_head.weight" or not read_shape(model).tied}


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
            logging_level=logging.ERROR,
        )
        yield str(ray.get_runtime_context().gcs_address)
        ray.shutdown()


class Engine:
    """An engine in another process; see `sync_engine`."""

    def __init__(self, config: RunConfig, folder: Path, environment: dict[str, str], digest: bool) -> None:
        call = [
            sys.executable,
            "-m",
            "tests.benchmarks.sync_engine",
            config.model_dump_json(),
            str(folder),
            "with" if digest else "without",
        ]
        self._process = subprocess.Popen(
            call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **environment}
        )
        self._line()

    def ask(self, question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the engine's process has ended; its error stands above")
        return line


def measure(kind: str, payload: str, model: Path, publishes: int, *, samples: int = 0, digest: bool = True) -> dict[str, float]:
    """Medians in milliseconds by the columns' names, of publishes to one engine that decodes `samples` samples, and the payload's MB."""
    config = RunConfig.model_validate(
        {
            "model": {"path": str(model)},
            "lora": {"kind": PAYLOADS[payload], "rank": RANK},
            "transport": {"kind": kind, "payload": payload},
            "orchestration": {"kind": "ray" if kind == "object_store" else "asyncio"},
            "rollout": {"max_running": max(samples, 8)},
        }
    )
    tensors = adapter(read_shape(model)) if payload == "adapter" else weights(model)
    size = sum(tensor.nbytes for tensor in tensors.values())
    taken: list[dict[str, float]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environment = {}
        if kind == "object_store":
            environment["RAY_ADDRESS"] = stack.enter_context(ray_cluster(max(100_000_000, 4 * size)))
        sender = registry.resolve("transport", kind)(Link(RUN, folder, "trainer", config.transport))
        stack.callback(sender.close)
        if not digest:
            stack.callback(without_digest())
        engine = Engine(config, folder, environment, digest)
        stack.callback(engine.end)
        if samples:
            engine.ask({"decode": samples})
        last: dict[str, Any] = {}
        for version in range(1, publishes + WARM + 1):
            began = time.perf_counter()
            manifest: Manifest = sender.send(tensors, version, payload, ["generator/0"])
            sent = time.perf_counter()
            report = engine.ask(to_wire(manifest))
            seconds = {
                "export": sent - began,
                "transfer": report["transfer_s"],
                "apply": report["apply_s"],
                "total": time.perf_counter() - began,
                "pause": report["pause_s"],
            }
            if samples and not report["running"]:
                raise SystemExit("no sample ran beside the publish")
            taken.append({name: 1e3 * value for name, value in seconds.items()})
            if last:
                steps = report["steps_before"]["decode_steps"] - last["decode_steps"]
                taken[-1]["step"] = 1e3 * (report["steps_before"]["decode_s"] - last["decode_s"]) / steps if steps else 0.0
            last = report["steps_before"]
            time.sleep(0.3 if samples else 0.05)
    kept = taken[WARM:]
    return {"MB": size / 1e6, **{name: statistics.median(one[name] for one in kept) for name in kept[0]}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payloads", nargs="+", choices=sorted(PAYLOADS), default=sorted(PAYLOADS))
    parser.add_argument("--publishes", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--samples", type=int, default=64, help="decoded in the second table")
    parser.add_argument("--quick", action="store_true", help="a tiny random model, one road, two publishes: proves that it runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.quick:
            model = make_tiny_model(Path(folder) / "model", layers=2)
            options.kinds, options.payloads, options.publishes, options.samples = ["http"], ["adapter"], 2, 4
        else:
            model = models.locate(models.BUILT_IN)
        show(model, options)


def show(model: Path, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    print(f"# Sync\n\n{circumstances()}\n", flush=True)
    columns = ["MB", "export", "transfer", "apply", "total"]
    rows = []
    for kind in options.kinds:
        for payload in options.payloads:
            figures = measure(kind, payload, model, options.publishes)
            rows.append([kind, payload, *(figures[name] for name in columns)])
    print(table(["transport", "payload", "MB", "export ms", "transfer ms", "apply ms", "publish to swap ms"], rows), "\n", flush=True)
    rows = []
    for payload in options.payloads:
        figures = measure("shared_memory", payload, model, options.publishes, samples=options.samples)
        rows.append([payload, *(figures[name] for name in (*columns[1:], "pause", "step"))])
    heads = ["payload", "export ms", "transfer ms", "apply ms", "publish to swap ms", "pause ms", "decode step ms"]
    print(
        f"Over shared memory, while {options.samples} samples are decoded (interrupt forward_pass):\n\n{table(heads, rows)}\n", flush=True
    )
    rows = []
    for payload in options.payloads:
        with_it, without = (measure("shared_memory", payload, model, options.publishes, digest=digest)["total"] for digest in (True, False))
        rows.append([payload, with_it, without, with_it / without])
    print(f"What the digest costs, over shared memory:\n\n{table(['payload', 'with ms', 'without ms', 'ratio'], rows)}", flush=True)


if __name__ == "__main__":
    main()

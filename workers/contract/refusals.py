"""Combinations that cannot work. Each rule is a generator of errors with field, value and cure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from workers.contract import engine_rules, loss_rules, remote
from workers.contract.axes import INTERRUPTS, PAYLOADS
from workers.contract.bounds import most_groups
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError

Faults = Iterator[ConfigError]


def start(config: RunConfig) -> Faults:
    """What the path of a checkpoint to start from can tell by itself; the folder is looked at when the run starts."""
    path = config.model.init_from
    if path is not None and (not path.startswith("/") or ".." in path.split("/") or "\0" in path):
        yield ConfigError(
            "a checkpoint to start from is named by its absolute path",
            field="model.init_from",
            value=path,
            cure="give the whole path of a folder such as /data/runs/abc/attempt-1/checkpoints/step-000040",
        )


def flow(config: RunConfig) -> Faults:
    batch, buffer = config.batch, config.buffer
    smallest = batch.prompts * (batch.group_size if buffer.unit == "sample" else 1)
    if buffer.kind == "bounded" and buffer.depth < smallest:
        # It would run, but no batch could be made ready while the trainer works: the pools would take turns.
        yield ConfigError(
            f"the buffer must hold at least one batch of {smallest} {buffer.unit}s, or generation stands still while the trainer works",
            field="buffer.depth",
            value=buffer.depth,
            cure=f"set buffer.depth to {smallest} or more, or batch.prompts lower; for taking turns on purpose set buffer.kind to none",
        )
    if batch.prompts % batch.minibatches:
        divisors = [n for n in range(1, min(batch.prompts, 64) + 1) if batch.prompts % n == 0]
        yield ConfigError(
            f"minibatches must divide the batch's {batch.prompts} prompts",
            field="batch.minibatches",
            value=batch.minibatches,
            cure=f"set batch.minibatches to one of {', '.join(map(str, divisors))}",
        )
    bound = config.staleness.depth_bound
    if bound is not None and bound.unit != "fraction":
        one_batch = batch.prompts * batch.group_size
        if bound.value * (one_batch if bound.unit == "batches" else 1) < one_batch:
            # Groups that wait for the rest of their batch are under way, too: the batch would never be complete.
            yield ConfigError(
                f"less than one batch of {one_batch} samples may be under way: no batch would ever be complete",
                field="staleness.depth_bound",
                value=f"{bound.value:g} {bound.unit}",
                cure=f"allow at least 1 batches, or {one_batch} samples",
            )
    if config.curriculum.window_low >= config.curriculum.window_high:
        yield ConfigError(
            "no pass rate lies in the window",
            field="curriculum.window_low",
            value=config.curriculum.window_low,
            cure=f"set it below curriculum.window_high, which is {config.curriculum.window_high:g}",
        )


def interrupts(config: RunConfig) -> Faults:
    """Which cache policies and partial kinds go with an interrupt: the table of `axes.INTERRUPTS`."""
    kind, kinds = config.interrupt.kind, list(config.partial)
    caches, partials = INTERRUPTS[kind]
    if config.interrupt.kv_after not in caches:
        yield ConfigError(
            f"{kind} cannot treat the cache so",
            field="interrupt.kv_after",
            value=config.interrupt.kv_after,
            cure=f"set interrupt.kv_after to {_either(caches)}",
        )
    bases = [name for name in kinds if name != "cancel_group"]
    if len(set(kinds)) != len(kinds):
        yield ConfigError("a kind stands twice", field="partial", value=kinds, cure="name each kind once")
    elif len(bases) != 1 or bases[0] not in partials:
        yield ConfigError(
            f"with {kind}, exactly one of {_either(partials)} says what becomes of half-finished samples",
            field="partial",
            value=kinds,
            cure=f'set partial to ["{sorted(partials)[0]}"], with "cancel_group" beside it if wished; or choose another interrupt.kind',
        )
    if "cancel_group" in kinds and config.staleness.over_limit != "drop":
        yield ConfigError(
            "cancel_group gives up what would be dropped for its age, and nothing is",
            field="staleness.over_limit",
            value=config.staleness.over_limit,
            cure='set staleness.over_limit to drop, or take "cancel_group" out of partial',
        )


def weights(config: RunConfig) -> Faults:
    """What learns, what of it travels, and on which road."""
    lora, transport = config.lora.kind, config.transport
    if transport.payload not in PAYLOADS[lora]:
        yield ConfigError(
            f"with lora.kind {lora} there is no such payload",
            field="transport.payload",
            value=transport.payload,
            cure=f"set transport.payload to {_either(PAYLOADS[lora])}, or lora.kind to "
            + _either(kind for kind, payloads in PAYLOADS.items() if transport.payload in payloads),
        )
    if transport.kind == "object_store" and config.orchestration.kind != "ray":
        yield ConfigError(
            "the object store is Ray's: engines and trainer must be its actors",
            field="transport.kind",
            value=transport.kind,
            cure="set orchestration.kind to ray, or transport.kind to shared_memory",
        )
    if transport.kind == "restart":
        if config.interrupt.kind not in ("drain", "batch"):
            yield ConfigError(
                "an engine that is restarted loses every running request",
                field="interrupt.kind",
                value=config.interrupt.kind,
                cure='set interrupt.kind to drain or batch and partial to ["none"], or choose another transport.kind',
            )
        if transport.payload in ("delta", "expert_shards"):
            yield ConfigError(
                "an engine that starts anew holds no version that a difference could build on",
                field="transport.payload",
                value=transport.payload,
                cure="set transport.payload to full, or choose another transport.kind",
            )
    if config.lora.moe_experts and lora == "off":
        yield ConfigError(
            "there are no adapters: every weight is trained, the experts' too",
            field="lora.moe_experts",
            value=True,
            cure="set lora.moe_experts to false, or lora.kind to merged",
        )


def backend(config: RunConfig) -> Faults:
    pool = config.backend
    if pool.kind == "single" and pool.ranks != 1:
        yield ConfigError(
            "single is one process", field="backend.ranks", value=pool.ranks, cure="set it to 1, or backend.kind to ddp, fsdp2 or tp"
        )
    if pool.sharded_optimizer and pool.kind != "ddp":
        yield ConfigError(
            "only ddp takes this option; fsdp2 and tp shard the optimizer in any case",
            field="backend.sharded_optimizer",
            value=True,
            cure="set it to false, or backend.kind to ddp",
        )


def strict(config: RunConfig) -> Faults:
    """Strict mode promises the same bits; each row is something that would change them."""
    if config.determinism != "strict":
        return
    rows = (
        ("model.dtype", config.model.dtype, config.model.dtype == "float32", "float32"),
        ("staleness.max_lag", config.staleness.max_lag, config.staleness.max_lag == 0, "0"),
        ("rollout.engines", config.rollout.engines, config.rollout.engines == 1, "1"),
        ("rollout.threads", config.rollout.threads, config.rollout.threads <= 1, "1"),
        ("backend.threads", config.backend.threads, config.backend.threads <= 1, "1"),
        ("sync.every_steps", config.sync.every_steps, config.sync.every_steps == 1 or config.budget.steps == 1, "1"),
    )
    for field, value, holds, wanted in rows:
        if not holds:
            yield ConfigError(
                f"strict determinism needs {wanted}", field=field, value=value, cure=f"set {field} to {wanted}, or determinism to fast"
            )
    bound = config.staleness.depth_bound
    if most_groups(config) != config.batch.prompts:
        # Otherwise dispatch runs ahead, and which samples are dropped as stale hangs on the clock.
        yield ConfigError(
            "strict determinism needs exactly one batch under way",
            field="staleness.depth_bound",
            value="none" if bound is None else f"{bound.value:g} {bound.unit}",
            cure='set staleness.depth_bound to {"value": 1, "unit": "batches"}, or determinism to fast',
        )
    if config.budget.wall_s is not None:
        yield ConfigError(
            "a time limit ends a run at a different step each time, which strict determinism rules out",
            field="budget.wall_s",
            value=config.budget.wall_s,
            cure="set budget.wall_s to null and bound the run by budget.steps, or determinism to fast",
        )


def _either(words: Iterable[str]) -> str:
    listed = sorted(words)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} or {listed[-1]}"


OTHERS = (loss_rules.refused, engine_rules.vllm, remote.rules)
RULES: tuple[Callable[[RunConfig], Faults], ...] = (start, flow, interrupts, weights, backend, strict, *OTHERS)

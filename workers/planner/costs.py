"""What the axes that touch the world are declared to cost, by kind: the numbers behind their twins.

They are assumptions about one host, written down so that they can be replaced by measured ones; nothing else depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.contract.config import RunConfig


@dataclass(frozen=True)
class Road:
    """A transport: seconds per publish, seconds per byte received, and whether the engine loads its model anew."""

    setup_s: float
    byte_s: float
    restart: bool = False


@dataclass(frozen=True)
class Spread:
    """A backend: the share of ideal speed-up that `ranks` processes reach, and whether weights are gathered before a publish."""

    efficiency: float
    gathers: bool = False


ROADS: dict[str, Road] = {
    "shared_memory": Road(0.002, 0.4e-9),
    "filesystem": Road(0.010, 1.5e-9),
    "collective": Road(0.020, 0.8e-9),
    "collective_bucketed": Road(0.005, 0.6e-9),
    "cuda_ipc": Road(0.002, 0.01e-9),
    "http": Road(0.004, 2.0e-9),
    "object_store": Road(0.004, 0.8e-9),
    "restart": Road(0.010, 1.5e-9, restart=True),
}
MESSAGE_S: dict[str, float] = {"asyncio": 0.0005, "ray": 0.002, "pubsub": 0.001, "http": 0.0015}  # one way
BACKENDS: dict[str, Spread] = {
    "single": Spread(1.0),
    "ddp": Spread(0.9),
    "fsdp2": Spread(0.85, gathers=True),
    "tp": Spread(0.75, gathers=True),
}
# Of the whole weights' bytes; a delta names each position by 4 bytes beside the value's 2.
SHARES: dict[str, float] = {"full": 1.0, "merged_adapter": 1.0, "delta": 0.03 * 3, "expert_shards": 0.5}
GATHER_BYTE_S = 0.5e-9
TRAINED_SHARE: dict[str, float] = {"adapter_only": 2 / 3, "merged": 2 / 3, "off": 1.0}  # no gradients of frozen weights


@dataclass(frozen=True)
class Costs:
    """Declared costs of one run. Seconds, bytes.

    token_s: forward and backward of one completion token in one process, every weight trained.
    """

    message_s: float = 0.0
    token_s: float = 0.0
    batch_s: float = 1.0
    payload_bytes: int = 1000
    export_s: float = 0.01
    setup_s: float = 0.01
    byte_s: float = 0.0
    load_s: float = 0.0  # an engine that starts anew

    @property
    def transfer_s(self) -> float:
        return self.setup_s + self.payload_bytes * self.byte_s + self.load_s


def declared(
    config: RunConfig, *, weight_bytes: int = 270_000_000, adapter_bytes: int | None = None, token_s: float = 0.002, load_s: float = 5.0
) -> Costs:
    """The costs of a config by the tables above, for a model of `weight_bytes` in the engine's number format and adapters of
    `adapter_bytes`; by default as large as those of a model of 135 million parameters."""
    road, spread = ROADS[config.transport.kind], BACKENDS[config.backend.kind]
    ranks = config.backend.ranks
    payload = config.transport.payload
    share = SHARES.get(payload, 0.0)
    size = int(weight_bytes * share) if share else min(weight_bytes, adapter_bytes or config.lora.rank * 200_000)
    speed = 1.0 if ranks == 1 else ranks * spread.efficiency
    return Costs(
        message_s=MESSAGE_S[config.orchestration.kind],
        token_s=token_s * TRAINED_SHARE[config.lora.kind] / speed,
        batch_s=0.0,
        payload_bytes=size,
        export_s=road.setup_s + size * (road.byte_s + (GATHER_BYTE_S if spread.gathers else 0.0)),
        setup_s=road.setup_s,
        byte_s=road.byte_s,
        load_s=load_s if road.restart else 0.0,
    )

"""The door of servers, and which kind one is."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.records import SampleRequest
from workers.rollout.remote.answer import Answer, dig
from workers.rollout.remote.calls import Calls
from workers.rollout.remote.sglang import Sglang
from workers.rollout.remote.vllm import Vllm


class Server(Protocol):
    """Constructed as `Server(calls, model, mark)`: `model` is the name it serves its weights by, `mark` this client's own word."""

    async def sample(self, request: SampleRequest, prefix: list[int], version: int, vocabulary: int) -> Answer:
        """One sample from after its prefix on. Raises Failure for an answer that cannot be believed, EngineError for none."""
        ...

    async def served(self) -> str:
        """What was last given to `label` or `load`, by whomever; a server's own word where nobody has. Raises EngineError, Failure."""
        ...

    async def check(self, version: int) -> None:
        """Raises Failure where the server no longer serves what it was given as `version`."""
        ...

    async def pause(self) -> None:
        """Everything that runs ends with what it has; what comes now waits."""
        ...

    async def resume(self) -> None: ...

    async def load(self, folder: Path, version: int, adapter: bool) -> None:
        """Called while paused, with a folder that the server sees under the same path. Raises EngineError or Failure."""
        ...

    async def label(self, version: int) -> None:
        """Called at the start and by `load`: what `check` finds from now on."""
        ...

    async def unfit(self, config: RunConfig) -> tuple[str, str] | None:
        """Called once, at the start: why the server would not do what this run asks, and the cure. Raises Failure, EngineError."""
        ...


FLAVOURS: dict[str, type[Vllm] | type[Sglang]] = {"vllm": Vllm, "sglang": Sglang}


async def recognise(calls: Calls, flavour: str) -> tuple[str, str]:
    """The server's flavour and the name it serves its model by, as both kinds list it. Raises EngineError, Failure."""
    card = dig(await calls("GET", "/v1/models"), "data", 0)
    owner = str(card.get("owned_by"))[:60] if isinstance(card, dict) else ""
    if flavour == "auto" and owner not in FLAVOURS:
        raise EngineError(
            f"the server says it is of {owner!r}, which is neither vllm nor sglang",
            field="rollout.remote.flavour",
            value=flavour,
            cure="set it to vllm or sglang if it is one of them",
        )
    return (owner if flavour == "auto" else flavour), str(dig(card, "id"))

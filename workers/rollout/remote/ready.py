"""Before the first sample: what the server is, and whether it is started so that it can do what the run asks."""

from __future__ import annotations

import secrets
from pathlib import Path

from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.rollout.remote.calls import Calls, Failure
from workers.rollout.remote.servers import FLAVOURS, recognise

WHOLE, ADAPTERS = "headrace-whole-", "headrace-adapter-"  # what a run's mark tells the next one: whether the server's weights were replaced


def mark_of(config: RunConfig) -> str:
    """A word for the weights of this engine and no other."""
    return (ADAPTERS if config.transport.payload == "adapter" else WHOLE) + secrets.token_hex(4)


async def make_ready(calls: Calls, config: RunConfig, mark: str, folder: Path) -> tuple[str, str]:
    """The server's flavour and the name of its model. Ends what an engine that was killed may have left paused; where an earlier run has
    replaced the server's weights, the model's own are loaded again. Raises EngineError."""
    assert config.rollout.remote is not None
    try:
        flavour, model = await recognise(calls, config.rollout.remote.flavour)
        server = FLAVOURS[flavour](calls, model, mark)
        before = await server.served()
        reason = await server.unfit(config)
        if reason is not None:
            raise EngineError(reason[0], field="rollout.remote.urls", value=calls.url, cure=reason[1])
        await server.resume()
        if before.startswith(WHOLE):
            await server.pause()
            await server.load(folder, 0, adapter=False)
            await server.resume()
        else:
            await server.label(0)
        await server.check(0)
    except Failure as failure:
        cure = "name a server of vLLM (started with VLLM_SERVER_DEV_MODE=1) or of SGLang"
        raise calls.refused(failure, cure) from None
    finally:
        await calls.close()
    return flavour, model

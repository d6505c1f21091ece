"""vLLM's side of bench_decode, in a process of its own. One line of JSON in, one out, until the input ends.

    PYTHON vllm_player.py MODEL SLOTS {async,in-process} {eager,compiled}

In: {"prompts": [[ids], ...], "new": [tokens, ...]}. Out: {"tokens": made, "seconds": from the first request to the last answer}.
The first line out says {"vllm": version}. Imports nothing of Headrace: this Python may be another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

Play = Callable[[list[dict[str, Any]], list[Any]], "Coroutine[Any, Any, int]"]


def in_process(options: dict[str, Any]) -> Play:
    from vllm import LLM

    engine = LLM(**options)

    async def play(prompts: list[dict[str, Any]], settings: list[Any]) -> int:
        done = engine.generate(prompts, settings, use_tqdm=False)
        assert all(len(one.outputs[0].logprobs) == len(one.outputs[0].token_ids) for one in done)
        return sum(len(one.outputs[0].token_ids) for one in done)

    return play


def asynchronous(options: dict[str, Any]) -> Play:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**options))
    waves = 0

    async def one(prompt: dict[str, Any], setting: Any, name: str) -> int:
        (last,) = [answer async for answer in engine.generate(prompt, setting, name)]
        assert len(last.outputs[0].logprobs) == len(last.outputs[0].token_ids)
        return len(last.outputs[0].token_ids)

    async def play(prompts: list[dict[str, Any]], settings: list[Any]) -> int:
        nonlocal waves
        waves += 1
        pairs = enumerate(zip(prompts, settings, strict=True))
        return sum(await asyncio.gather(*(one(prompt, setting, f"{waves}/{index}") for index, (prompt, setting) in pairs)))

    return play


async def main(model: str, slots: str, way: str, graph: str) -> None:
    out = os.fdopen(os.dup(1), "w")  # vLLM prints on standard output, too: that goes to standard error
    os.dup2(2, 1)
    if way == "in-process":
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import vllm
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    options = {
        "model": model,
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "max_num_seqs": int(slots),
        "enforce_eager": graph == "eager",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
    }
    play = (in_process if way == "in-process" else asynchronous)(options)
    print(json.dumps({"vllm": vllm.__version__}), file=out, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        given = json.loads(line)
        settings = [
            SamplingParams(
                temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False, logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY
            )
            for new in given["new"]
        ]
        begun = time.perf_counter()
        tokens = await play([{"prompt_token_ids": prompt} for prompt in given["prompts"]], settings)
        print(json.dumps({"tokens": tokens, "seconds": time.perf_counter() - begun}), file=out, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

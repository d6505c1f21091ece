"""A server of SGLang, from its source at 0.5: how it is asked for a sample, brought to a stand, and given weights. Not yet run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workers.contract.config import RunConfig
from workers.records import SampleRequest
from workers.rollout.remote.answer import Answer, dig, judge, seed_of, truncates
from workers.rollout.remote.calls import Calls, Failure


class Sglang:
    """SGLang's native server. Adapters need --enable-lora; log-probs are of the whole distribution at the request's temperature."""

    def __init__(self, calls: Calls, model: str, mark: str) -> None:
        self._call = calls
        self._mark = mark
        self._adapter: str | None = None

    async def sample(self, request: SampleRequest, prefix: list[int], version: int, vocabulary: int) -> Answer:
        most = request.max_new_tokens - len(prefix)
        body: dict[str, Any] = {
            "input_ids": request.prompt_ids + prefix,
            "sampling_params": {
                "max_new_tokens": most,
                "temperature": request.temperature,
                "top_k": -1,
                "top_p": 1.0,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "sampling_seed": seed_of(request, len(prefix)) % 2**31,
                "stop_token_ids": request.stop_ids,
                "ignore_eos": True,
                "skip_special_tokens": False,
            },
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": False,
        }
        if self._adapter is not None:
            body["lora_path"] = self._adapter
        meta = dig(await self._call("POST", "/generate", body), "meta_info")
        found = dig(meta, "weight_version")
        if found != f"{self._mark}-{version}":
            raise Failure("weights", f"the answer is of weights {str(found)[:60]!r}, not of version {version} of this run", False)
        reason = dig(meta, "finish_reason", "type")
        pairs = meta.get("output_token_logprobs", [])
        if not isinstance(pairs, list) or any(not isinstance(pair, list) or len(pair) < 2 for pair in pairs):
            raise Failure("bad_shape", "an answer without pairs of log-prob and token", False)
        count = meta.get("completion_tokens", len(pairs))
        if count != len(pairs) and reason != "abort":
            raise Failure("bad_count", f"{count} tokens with {len(pairs)} log-probs", False)
        return judge([pair[1] for pair in pairs], [pair[0] for pair in pairs], reason, vocabulary, most)

    async def served(self) -> str:
        return str(dig(await self._call("GET", "/get_model_info"), "weight_version"))

    async def check(self, version: int) -> None:
        found = await self.served()
        if found != f"{self._mark}-{version}":
            raise Failure("weights", f"the server serves {found[:60]!r}, not version {version} of this run", False)

    async def pause(self) -> None:
        await self._call("POST", "/pause_generation", {"mode": "abort"})

    async def resume(self) -> None:
        await self._call("POST", "/continue_generation", {})

    async def load(self, folder: Path, version: int, adapter: bool) -> None:
        mark = f"{self._mark}-{version}"
        if not adapter:
            body = {"model_path": str(folder), "weight_version": mark, "flush_cache": True}
            _succeeded(await self._call("POST", "/update_weights_from_disk", body))
            return
        # An adapter's name cannot be given twice; its cache is kept by its name, so that the old one's is never found.
        _succeeded(await self._call("POST", "/load_lora_adapter", {"lora_name": mark, "lora_path": str(folder)}))
        old, self._adapter = self._adapter, mark
        await self.label(version)
        if old is not None:
            _succeeded(await self._call("POST", "/unload_lora_adapter", {"lora_name": old}))

    async def label(self, version: int) -> None:
        body = {"new_version": f"{self._mark}-{version}", "abort_all_requests": False}
        _succeeded(await self._call("POST", "/update_weight_version", body))

    async def unfit(self, config: RunConfig) -> tuple[str, str] | None:
        if truncates(config):
            return "SGLang tells log-probs of the whole distribution", "set sampling.top_k to 0, top_p to 1 and min_p to 0"
        return None


def _succeeded(answer: Any) -> None:
    if dig(answer, "success") is not True:
        words = answer.get("message") or answer.get("error_message") or "without a reason"
        raise Failure("refused", f"the server refused: {str(words)[:200]!r}", False)

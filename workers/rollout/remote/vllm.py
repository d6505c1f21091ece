"""A server of vLLM: how it is asked for a sample, brought to a stand, and given weights. Written to version 0.32."""

from __future__ import annotations

from pathlib import Path

from workers.contract.config import RunConfig
from workers.records import SampleRequest
from workers.rollout.remote.answer import Answer, dig, judge, seed_of, tied, truncates
from workers.rollout.remote.calls import Calls, Failure


class Vllm:
    """vLLM's OpenAI server, started with VLLM_SERVER_DEV_MODE=1. Adapters need --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."""

    def __init__(self, calls: Calls, model: str, mark: str) -> None:
        self._call = calls
        self._model = model
        self._mark = mark

    async def sample(self, request: SampleRequest, prefix: list[int], version: int, vocabulary: int) -> Answer:
        most = request.max_new_tokens - len(prefix)
        body = {
            "model": self._model,
            "prompt": request.prompt_ids + prefix,
            "max_tokens": most,
            "temperature": request.temperature,
            "top_k": request.top_k,
            "top_p": request.top_p,
            "min_p": request.min_p,
            "repetition_penalty": 1.0,  # said, because a model's own generation config may say otherwise
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": seed_of(request, len(prefix)),
            "stop_token_ids": request.stop_ids,
            "ignore_eos": True,  # the request's stop ids hold it, where it is one
            "logprobs": 0,  # of the drawn token alone
            "return_token_ids": True,
            "skip_special_tokens": False,
            "cache_salt": f"{self._mark}-{version}",  # keys of old weights are never found under new ones
        }
        answer = await self._call("POST", "/v1/completions", body)
        await self.check(version)  # its answers do not tell the version
        choice = dig(answer, "choices", 0)
        ids, logprobs = dig(choice, "token_ids"), dig(choice, "logprobs", "token_logprobs")
        return judge(ids, logprobs, dig(choice, "finish_reason"), vocabulary, most)

    async def served(self) -> str:
        return str(dig(await self._call("GET", "/weight_info"), "weight_version"))

    async def check(self, version: int) -> None:
        found = await self.served()
        if found != f"{self._mark}-{version}":
            raise Failure("weights", f"the server serves {found[:60]!r}, not version {version} of this run", False)

    async def pause(self) -> None:
        await self._call("POST", "/pause", query={"mode": "abort"})

    async def resume(self) -> None:
        await self._call("POST", "/resume")

    async def load(self, folder: Path, version: int, adapter: bool) -> None:
        if adapter:
            body = {"lora_name": self._mark, "lora_path": str(folder), "load_inplace": True}
            await self._call("POST", "/v1/load_lora_adapter", body, words=True)
            self._model = self._mark
        else:
            await self._call("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        if dig(await self._call("POST", "/reset_prefix_cache"), "success") is not True:
            raise Failure("cache", "the server could not empty its prefix cache", False)
        await self.label(version)

    async def label(self, version: int) -> None:
        await self._call("POST", "/update_weight_version", {"new_version": f"{self._mark}-{version}"})

    async def unfit(self, config: RunConfig) -> tuple[str, str] | None:
        settings = dig(await self._call("GET", "/server_info", query={"config_format": "json"}), "vllm_config")
        adapter = config.transport.payload == "adapter"
        if adapter and dig(settings, "lora_config") is None:
            return "vLLM was started without --enable-lora", "start it with that, or set lora.kind to merged"
        if not adapter and "cpu" in str(dig(settings, "device_config")) and tied(config):
            # Its packed copy of the output weights is not made anew by a reload: measured with 0.32, and no error is told.
            return "vLLM on a CPU keeps the old output weights of a tied model", "set rollout.engine to vllm, or lora.kind to adapter_only"
        processed = str(dig(settings, "model_config", "logprobs_mode")).startswith("processed_logprobs")
        if not processed and (truncates(config) or config.sampling.temperature not in (0.0, 1.0)):
            return "vLLM tells log-probs of before temperature and truncation", "start it with --logprobs-mode processed_logprobs"
        return None

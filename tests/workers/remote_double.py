"""A server that speaks vLLM's or SGLang's protocol as far as Headrace uses it. Its answers are those of a real torch engine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import torch
import uvicorn
from safetensors.torch import load_file

from tests.workers.remote_rig import reply, spoil
from workers.axes.transport.base import Link
from workers.axes.transport.filesystem import FilesystemTransport
from workers.contract.config import RunConfig
from workers.contract.config import Transport as Options
from workers.contract.errors import EngineError
from workers.records import Manifest, Rollout, SampleRequest
from workers.rollout.torch.generator import TorchGenerator

NAME = "generator/0"


class Held(FilesystemTransport):
    """A pause is an update whose weights do not come: either some are loaded meanwhile, or none ever arrive."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(Link("double", scratch, NAME, Options()))
        self.opened = threading.Event()
        self.loaded: dict[str, torch.Tensor] | None = None

    def receive(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        assert self.opened.wait(30)
        if self.loaded is None:
            raise EngineError("resumed without new weights")
        return self.loaded


class Double:
    """`faults`: what befalls the next samples, one each; `heard`: every call's path; `raw`: log-probs are before truncation."""

    def __init__(self, flavour: str, folder: Path, scratch: Path, kind: str = "adapter_only") -> None:
        self.flavour = self.owner = flavour
        self.faults: deque[str] = deque()
        self.heard: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.label = "default"
        self.together = asyncio.Barrier(1)
        self.refuses_weights = False
        self.refuses_pause = False
        self.raw = False
        self.device = "cuda"
        self.adapters = kind == "adapter_only"
        self.url = ""
        blocks = {
            "model": {"path": str(folder), "dtype": "float32"},
            "lora": {"kind": kind, "rank": 4, "alpha": 8.0},
            "interrupt": {"kind": "abort", "kv_after": "flush"},
            "rollout": {"max_running": 64, "threads": 1},
        }
        config = RunConfig.model_validate(blocks)
        self._road = Held(scratch)
        self.engine = TorchGenerator(config, NAME, self._road)
        self._updates = 0
        self._pause: asyncio.Task[Any] | None = None
        self.samples: set[asyncio.Task[Rollout]] = set()
        self.names: set[str] = {"the-model"}
        self.given_up = 0

    def decoding(self, count: int) -> bool:
        """Whether exactly so many samples decode, each with some tokens already."""
        running = self.engine._scheduler.running
        return len(running) == count and all(len(one.tokens) > 4 for one in running)

    # -- what a server does -----------------------------------------------------------------------

    async def pause(self) -> None:
        if self._pause is None:
            self._road.opened.clear()
            self._road.loaded = None
            self._updates += 1
            self._pause = asyncio.create_task(self.engine.update(Manifest(self._updates, "", 0, "adapter", "filesystem", {})))
            await asyncio.sleep(0.05)
        else:  # what came meanwhile ends, too
            for task in list(self.samples):
                task.cancel()

    async def resume(self) -> None:
        if self._pause is not None:
            self._road.opened.set()
            await asyncio.gather(self._pause, return_exceptions=True)
            self._pause = None

    def load(self, folder: str) -> None:
        (file,) = Path(folder).glob("*.safetensors")
        self._road.loaded = load_file(file)

    async def sample(self, prompt: list[int], asked: dict[str, Any], key: int, receive: Any) -> Rollout | None:
        """None: the client has hung up."""
        one = SampleRequest("x/0", "x", 0, prompt, key=key, stop_ids=asked.pop("stop_token_ids"), **asked)
        await self.together.wait()
        task = asyncio.create_task(self.engine.generate(one))
        self.samples.add(task)
        gone = asyncio.create_task(receive())
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        self.samples.discard(task)
        hung_up = gone.done()
        gone.cancel()
        if hung_up and not task.done():
            task.cancel()
            self.given_up += 1
            return None
        if task.cancelled():
            return Rollout("x/0", "x", 0, [], [], [], "abort")
        return task.result()

    # -- how it is asked --------------------------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["path"]
        self.heard.append(path)
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        if self.refuses_pause and path in ("/pause", "/pause_generation"):
            return await reply(send, 400, {"error": "not now"}, "")
        given = json.loads(body) if body else {}
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        answer = await (self._vllm if self.flavour == "vllm" else self._sglang)(path, given, query, receive)
        fault = self.faults.popleft() if path in ("/v1/completions", "/generate") and self.faults else ""
        await reply(send, *spoil(answer, fault, self.flavour), fault)

    async def _vllm(self, path: str, given: Any, query: Any, receive: Any) -> Any:
        if path == "/v1/models":
            return {"object": "list", "data": [{"id": "the-model", "owned_by": self.owner, "max_model_len": 512}]}
        if path == "/server_info":
            assert query == {"config_format": "json"}
            lora = {"max_lora_rank": 8} if self.adapters else None
            mode = "raw_logprobs" if self.raw else "processed_logprobs"
            device = {"device": self.device, "device_type": self.device}
            return {"vllm_config": {"lora_config": lora, "device_config": device, "model_config": {"logprobs_mode": mode}}}
        if path == "/weight_info":
            return {"weight_version": self.label}
        if path == "/update_weight_version":
            self.label = given["new_version"]
            return {"success": True, "new_version": self.label}
        if path == "/pause":
            assert query == {"mode": "abort"}
            await self.pause()
            return {"status": "paused"}
        if path == "/resume":
            await self.resume()
            return {"status": "resumed"}
        if path == "/collective_rpc":
            assert given["method"] == "reload_weights"
            if self.refuses_weights:
                return (500, {"error": "no such file"})
            self.load(given["kwargs"]["weights_path"])
            return {"results": [None]}
        if path == "/v1/load_lora_adapter":
            assert given["load_inplace"] is True
            if self.refuses_weights:
                return (400, {"error": "no such file"})
            self.load(given["lora_path"])
            self.names.add(given["lora_name"])
            return f"Success: LoRA adapter '{given['lora_name']}' added successfully."
        if path == "/reset_prefix_cache":
            return {"success": True}
        if path == "/v1/completions":
            if given["model"] not in self.names:
                return (404, {"error": {"message": f"The model {given['model']} does not exist."}})
            assert given["return_token_ids"] and given["ignore_eos"] and given["logprobs"] == 0
            asked = {name: given[name] for name in ("temperature", "top_k", "top_p", "min_p", "stop_token_ids")}
            asked["max_new_tokens"] = given["max_tokens"]
            done = await self.sample(given["prompt"], asked, given["seed"], receive)
            if done is None:
                return {}
            choice = {
                "index": 0,
                "text": "",
                "finish_reason": done.finish_reason,
                "token_ids": list(done.token_ids),
                "logprobs": {"token_logprobs": list(done.logprobs)},
            }
            return {"id": "cmpl-1", "object": "text_completion", "model": "the-model", "choices": [choice], "usage": {}}
        return (404, {"detail": "Not Found"})

    async def _sglang(self, path: str, given: Any, query: Any, receive: Any) -> Any:
        if path == "/v1/models":
            return {"object": "list", "data": [{"id": "/models/the-model", "owned_by": self.owner}]}
        if path == "/get_model_info":
            return {"model_path": "/models/the-model", "weight_version": self.label}
        if path == "/update_weight_version":
            self.label = given["new_version"]
            return {"success": True, "message": "", "new_version": self.label}
        if path == "/pause_generation":
            assert given == {"mode": "abort"}
            await self.pause()
            return {"message": "Generation paused successfully.", "status": "ok"}
        if path == "/continue_generation":
            await self.resume()
            return {"message": "Generation continued successfully.", "status": "ok"}
        if path == "/update_weights_from_disk":
            if self.refuses_weights:
                return (400, {"success": False, "message": "Failed to update weights", "num_paused_requests": 0})
            self.load(given["model_path"])
            self.label = given["weight_version"]
            return {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        if path == "/load_lora_adapter":
            if self.refuses_weights or given["lora_name"] in self.names:
                return (400, {"success": False, "error_message": "already loaded"})
            self.load(given["lora_path"])
            self.names.add(given["lora_name"])
            return {"success": True, "error_message": "", "loaded_adapters": {}}
        if path == "/unload_lora_adapter":
            self.names.remove(given["lora_name"])
            return {"success": True, "error_message": "", "loaded_adapters": {}}
        if path == "/generate":
            assert given.get("lora_path", "the-model") in self.names and given["return_logprob"]
            asked = dict(given["sampling_params"])
            key = asked.pop("sampling_seed")
            for name in ("repetition_penalty", "ignore_eos", "skip_special_tokens"):
                del asked[name]
            asked["top_k"] = max(0, asked["top_k"])
            done = await self.sample(given["input_ids"], asked, key, receive)
            if done is None:
                return {}
            meta: dict[str, Any] = {"id": "1", "finish_reason": {"type": done.finish_reason}, "weight_version": self.label}
            meta["output_token_logprobs"] = [[value, token, None] for value, token in zip(done.logprobs, done.token_ids, strict=True)]
            meta["completion_tokens"] = len(done.token_ids)
            return {"text": "", "output_ids": done.token_ids, "meta_info": meta}
        return (404, {"detail": "Not Found"})


@asynccontextmanager
async def serving(double: Double) -> AsyncIterator[Double]:
    """The double on a free port of loopback, in this event loop."""
    server = uvicorn.Server(uvicorn.Config(double, host="127.0.0.1", port=0, log_level="critical", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    double.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield double
    finally:
        await double.resume()
        server.should_exit = server.force_exit = True
        await task
        await double.engine.stop()

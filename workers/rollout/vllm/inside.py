"""What of Headrace runs inside vLLM's own processes: the guard, and the end of the road that weights take into the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from workers.rollout.vllm import guard
from workers.rollout.vllm.routing import Routes

BACKEND = "headrace"

guard.watch()  # the engine's core imports this module with its arguments, each worker with its extension: long before any weight


class GuardedExecutor(MultiprocExecutor):  # type: ignore[misc]
    """Named here so that the process of vLLM's core imports this module."""


class Extension:
    """Named as `worker_extension_cls`, so that vLLM's workers import this module before they make their transfer engine. Its methods
    become theirs, called by `collective_rpc`."""

    model_runner: Any
    routes: Routes

    def note_routing(self) -> None:
        """Called once, where samples' experts are to be told and vLLM does not tell them."""
        self.routes = Routes(self.model_runner)

    def take_routing(self, request: str) -> tuple[int, str]:
        return self.routes.take(request)


@dataclass
class NoInit(WeightTransferInitInfo):  # type: ignore[misc]
    """There is nothing to agree on beforehand."""


@dataclass
class WeightFile(WeightTransferUpdateInfo):  # type: ignore[misc]
    """path: a safetensors file in shared memory, tensors by the names of the model's checkpoint."""

    path: str


class FileEngine(WeightTransferEngine):  # type: ignore[misc]
    """Loads the tensors of one file into the model, through vLLM's own loaders, which pack, fuse and shard them."""

    init_info_cls = NoInit
    update_info_cls = WeightFile

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Nothing to do: each update names its file."""

    def start_weight_update(self) -> None:
        if current_platform.is_cpu():
            for layer in self.model.modules():
                method: Any = getattr(layer, "quant_method", None)
                if hasattr(method, "moe_kernel"):
                    method.moe_kernel = None  # made again, as vLLM packs experts for the CPU only together with their kernel
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: WeightFile) -> None:
        self.model.load_weights(_tensors(update_info.path))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, "lm_head", None)
        if head is not None and self.model_config.hf_text_config.tie_word_embeddings:
            # It shares the embedding's numbers, which are new now, but on CPU computes with a packed copy of its own.
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Nothing is held."""


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 -- no dictionary
            yield name, file.get_tensor(name)


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FileEngine)

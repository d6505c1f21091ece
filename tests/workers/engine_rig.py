"""A real torch engine on a tiny model in float32, the trainer's end of its road, and a gate that holds weights back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from transformers import AutoModelForCausalLM

from workers import registry
from workers.axes.transport.base import Link
from workers.axes.transport.filesystem import FilesystemTransport
from workers.contract.config import RunConfig, Transport
from workers.records import Manifest, Rollout, SampleRequest
from workers.rollout.torch.generator import TorchGenerator

NAME = "generator/0"
RUN = "interrupttest"
PROMPTS = [[5, 9, 33], [7, 7, 100, 3, 60, 61, 62, 80], [9], list(range(20, 60)), [5, 9, 33, 4]]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Gate(FilesystemTransport):
    """The road over a folder; `entered` tells that an engine came for weights, which it gets once `opened` is set."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.opened.set()

    def receive(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        self.entered.set()
        assert self.opened.wait(20)
        return super().receive(manifest)


def build(folder: Path, scratch: Path, **changes: object) -> tuple[TorchGenerator, Gate]:
    """An engine with `changes` to the blocks of its config. Strict determinism, interrupts and payloads as given."""
    blocks: dict = {"model": {"path": str(folder), "dtype": "float32"}, "lora": {"rank": 4, "alpha": 8.0}, "rollout": {"max_running": 3}}
    for name, value in changes.items():
        blocks[name] = {**blocks.get(name, {}), **value} if isinstance(value, dict) else value
    settings = RunConfig.model_validate(blocks)
    gate = Gate(Link(RUN, scratch, NAME, settings.transport))
    return TorchGenerator(settings, NAME, gate), gate


def request(prompt: list[int], index: int = 0, new: int = 60, **changes: object) -> SampleRequest:
    values: dict = {"temperature": 1.0, "key": 1000 + index, **changes}
    return SampleRequest(f"g{index}/{index}", f"g{index}", index, prompt, max_new_tokens=new, **values)


def base_model(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def adapted(folder: Path, seed: int, scale: float = 0.3) -> torch.nn.Module:
    """A PEFT model whose adapters do something; with scale 0 they do nothing."""
    options = LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS, lora_dropout=0.0)
    model = get_peft_model(base_model(folder), options).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * scale
    return model


def publish(model: torch.nn.Module, scratch: Path, version: int) -> Manifest:
    return send(get_peft_model_state_dict(model), scratch, version, "adapter")


def send(tensors: dict[str, torch.Tensor], scratch: Path, version: int, payload: str) -> Manifest:
    return FilesystemTransport(Link(RUN, scratch, "trainer", Transport())).send(tensors, version, payload, [NAME])


def spoilt(manifest: Manifest) -> Manifest:
    """The same publish after its last bytes were flipped on the way."""
    path = Path(manifest.handle["path"])
    data = path.read_bytes()
    path.write_bytes(data[:-4] + bytes(255 - byte for byte in data[-4:]))
    return manifest


def logprobs_of(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens).view(-1, 1)).view(-1)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        await asyncio.sleep(0.002)


class Caller:
    """The flow's part: asks for a sample, and does with an aborted one what the kind of partial rollout says."""

    def __init__(self, generator: TorchGenerator, partial: str) -> None:
        self._generator = generator
        self._partial = registry.resolve("partial", partial)()
        self.aborted: list[Rollout] = []

    async def sample(self, asked: SampleRequest) -> Rollout | None:
        """The finished rollout; None where it was dropped."""
        while True:
            rollout = await self._generator.generate(asked)
            if rollout.finish_reason != "abort":
                return rollout
            self.aborted.append(rollout)
            again = self._partial.again(asked, rollout)
            if again is None:
                return None
            asked = again

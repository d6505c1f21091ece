"""Keep Sampling Mask and Keep Routing, from the engine's draw to the trainer's gradient."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.workers.tiny_model import make_tiny_model, make_tiny_moe_model
from workers.axes.backend.layout import Item, build, micro_batches, rows_of
from workers.axes.backend.passes import check_layout, forward
from workers.axes.backend.prepare import prepare
from workers.axes.backend.routing import choices, decode, recorded, routers
from workers.axes.backend.single import SingleProcessTrainer
from workers.axes.partial.abort_prefix import AbortPrefix
from workers.axes.transport.base import Link
from workers.axes.transport.filesystem import FilesystemTransport
from workers.contract.config import RunConfig, Transport
from workers.contract.errors import ConfigError, EngineError
from workers.records import Batch, Group, Prompt, Rollout, Sample, SampleRequest
from workers.rollout.torch.experts import RoutingRecord
from workers.rollout.torch.generator import TorchGenerator

torch.set_num_threads(1)
PROMPTS = [[5, 9, 33], [7, 7, 100, 3, 60, 61, 62, 80], [9]]
GROUP = 3


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("dense"), seed=4, hidden=32)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts 0 and 1 have the same router row: which of them is chosen hangs on the last bit."""
    folder = make_tiny_moe_model(tmp_path_factory.mktemp("sparse"), seed=3)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("mlp.gate.weight"):
            weight[1] = weight[0]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def config(folder: Path, **blocks: Any) -> RunConfig:
    base: dict[str, Any] = {"model": {"path": str(folder), "dtype": "float32"}, "lora": {"rank": 2}, "rollout": {"max_running": 4}}
    return RunConfig.model_validate({**base, **blocks})


def transport(folder: Path, name: str = "trainer") -> FilesystemTransport:
    return FilesystemTransport(Link("replaytest00", folder, name, Transport()))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Callable[[RunConfig], TorchGenerator]]:
    started: list[TorchGenerator] = []

    def start(given: RunConfig) -> TorchGenerator:
        started.append(TorchGenerator(given, "generator/0", transport(tmp_path, "generator/0")))
        return started[-1]

    yield start
    for generator in started:
        await generator.stop()


async def generated(generator: TorchGenerator, given: RunConfig, new: int = 9) -> Batch:
    """A group of each prompt, rewards unequal, completions of several lengths."""
    sampling = given.sampling

    def request(number: int, index: int) -> SampleRequest:
        return SampleRequest(
            id=f"g{number}/{index}",
            group_id=f"g{number}",
            index=index,
            prompt_ids=PROMPTS[number],
            key=100 * number + index,
            max_new_tokens=max(1, new - 3 * index),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
        )

    pairs = [(number, index) for number in range(len(PROMPTS)) for index in range(GROUP)]
    rollouts = await asyncio.gather(*(generator.generate(request(*pair)) for pair in pairs))
    groups = [Group(f"g{number}", Prompt(f"p{number}", number, "", ids), 0) for number, ids in enumerate(PROMPTS)]
    for (number, index), rollout in zip(pairs, rollouts, strict=True):
        groups[number].samples.append(Sample(rollout, reward=float(index == 0)))
    return Batch(1, 0, groups)


def trained(model: Any, batch: Batch, given: RunConfig, budget: int = 1000) -> tuple[Tensor, Tensor]:
    """Trainer's and engine's log-probs of all tokens."""
    items = [item for group in prepare(batch, given).groups for item in group]
    found: dict[int, Tensor] = {}
    for rows in micro_batches(rows_of(items, budget), budget):
        micro = build(rows, 0)
        flat, _ = forward(model, micro, given.sampling.temperature)
        found.update({item.index: part for item, part in zip(micro.items, flat.split([len(i.tokens) for i in micro.items]), strict=True)})
    return torch.cat([found[item.index] for item in items]), torch.cat([torch.tensor(list(item.rollout)) for item in items])


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()
    if dtype == torch.float64:
        model.set_experts_implementation("eager")  # the grouped product knows no float64
    return model


# -- Keep Sampling Mask ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling",
    [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.05}],
    ids=["top_k", "top_p", "min_p", "all"],
)
async def test_trainer_and_engine_agree_under_truncated_sampling(dense: Path, engine: Callable[..., Any], sampling: dict[str, Any]) -> None:
    given = config(dense, sampling=sampling, replay={"sampling_mask": True})
    batch = await generated(engine(given), given)
    for group in batch.groups:
        for sample in group.samples:
            rollout = sample.rollout
            assert rollout.support is not None and len(rollout.support) == len(rollout.token_ids)
            assert all(token in ids for token, ids in zip(rollout.token_ids, rollout.support, strict=True))
    model = load(dense)
    ours, theirs = trained(model, batch, given)
    torch.testing.assert_close(ours.detach(), theirs, rtol=0, atol=1e-4)
    plain, _ = trained(model, batch, config(dense, sampling=sampling))
    assert float((theirs - plain.detach()).min()) > -1e-4, "without the record the engine's are higher, by minus log of the kept mass"
    assert float((theirs - plain.detach()).mean()) > 0.05


@pytest.mark.parametrize(("sampling", "replay"), [({}, {"sampling_mask": True}), ({"top_k": 5}, {})])
async def test_nothing_is_recorded_without_truncation_or_unasked(
    dense: Path, engine: Callable[..., Any], sampling: dict[str, Any], replay: dict[str, Any]
) -> None:
    given = config(dense, sampling=sampling, replay=replay)
    batch = await generated(engine(given), given, new=3)
    assert all(sample.rollout.support is None and sample.rollout.routing is None for group in batch.groups for sample in group.samples)


def test_a_support_without_its_own_token_gets_it() -> None:
    item = Item("a", 0, [5, 6], [7, 8, 9], [0.0] * 3, 1.0, support=[[1, 2], [], [9, 9, 3]])
    support = build(rows_of([item], 100), 0).support
    assert support is not None
    assert (support.rows.tolist(), support.ids.tolist()) == ([0, 0, 0, 2, 2], [1, 2, 7, 3, 9])


# -- Keep Routing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1000, 12])
async def test_r3_replays_what_the_engine_chose(sparse: Path, engine: Callable[..., Any], budget: int) -> None:
    """The trainer's ties fall otherwise: other experts, other log-probs; with the record they agree."""
    given = config(sparse, replay={"routing": "r3"})
    batch = await generated(engine(given), given)
    model = load(sparse)
    with torch.no_grad():
        for router in routers(model):
            router.weight[0] *= 1 + 1e-5
            router.weight[1] *= 1 - 1e-5
        replayed, theirs = trained(model, batch, given, budget)
        free, _ = trained(model, batch, config(sparse), budget)
    assert float((free - theirs).abs().max()) > 0.05, "the perturbation must flip choices, or this test shows nothing"
    torch.testing.assert_close(replayed, theirs, rtol=0, atol=1e-4)


async def test_the_engine_records_every_input_token(sparse: Path, engine: Callable[..., Any]) -> None:
    """Against the choice of transformers, prompt included, for the samples that hit the prompt cache, too."""
    given = config(sparse, replay={"routing": "r3"})
    generator = engine(given)
    batch = await generated(generator, given)
    again = await generated(generator, given)
    model = load(sparse)
    for group in (*batch.groups, *again.groups):
        for sample in group.samples:
            found = decode(sample.rollout, len(group.prompt.token_ids)).view(-1, 2, 2).to(torch.int64)
            assert len(found) == len(group.prompt.token_ids) + len(sample.rollout.token_ids) - 1
            ids = torch.tensor([[*group.prompt.token_ids, *sample.rollout.token_ids[:-1]]])
            with torch.no_grad(), recorded(model) as seen:
                model(input_ids=ids, use_cache=False)
            wanted = torch.stack(seen, dim=1)
            untied = ((found > 1) | (wanted > 1)).all(-1) | (found.sort(-1).values == wanted.sort(-1).values).all(-1)
            tied = [set(one) & {0, 1} for one in wanted[~untied].tolist()]
            assert all(tied), "only experts 0 and 1 may stand for one another"
            merged = torch.where(found == 1, 0, found).sort(-1).values, torch.where(wanted == 1, 0, wanted).sort(-1).values
            assert torch.equal(*merged)


def forced(model: Any, ids: Tensor) -> ExitStack:
    """Plain rows: every router chooses ids (rows, layers, k), written out anew."""
    stack = ExitStack()
    for layer, router in enumerate(routers(model)):

        def hook(module: Any, inputs: Any, output: Any, layer: int = layer) -> Any:
            chances = torch.softmax(inputs[0].reshape(-1, inputs[0].shape[-1]) @ module.weight.t(), -1)
            table = torch.stack([chances[row, ids[row, layer]] for row in range(len(chances))])
            gates = table / table.sum(-1, keepdim=True) if module.norm_topk_prob else table
            return output[0], gates, ids[:, layer]

        stack.callback(router.register_forward_hook(hook).remove)
    return stack


@pytest.mark.parametrize("normalised", [True, False])
def test_gates_and_their_gradient_equal_a_plain_reference(tmp_path: Path, normalised: bool) -> None:
    """Shared rows with arbitrary expert ids, in float64: log-probs, and the gradients of routers and of everything before them."""
    model = load(make_tiny_moe_model(tmp_path, seed=1, norm_topk_prob=normalised), torch.float64)
    source = torch.Generator().manual_seed(0)
    prompt, completions = [5, 6, 7, 8], [[9, 10, 11], [12, 13, 14, 15, 16], [17]]

    def picks(count: int) -> Tensor:
        return torch.rand(count, 2, 4, generator=source).argsort(-1)[..., :2].reshape(count, 4).to(torch.uint8)

    shared = picks(len(prompt))
    routing = [torch.cat((shared, picks(len(tokens) - 1))) for tokens in completions]
    items = [Item(str(k), k, prompt, tokens, [0.0] * len(tokens), 1.0, routing=routing[k]) for k, tokens in enumerate(completions)]
    learning = [parameter for name, parameter in model.named_parameters() if "mlp.gate" in name or "q_proj" in name or "experts" in name]
    for parameter in model.parameters():
        parameter.requires_grad_(any(parameter is one for one in learning))
    flat, _ = forward(model, build(rows_of(items, 100), 0), 0.8)
    values = []
    for item in items:
        assert item.routing is not None
        with forced(model, item.routing.view(-1, 2, 2).to(torch.int64)):
            logits = model(input_ids=torch.tensor([[*prompt, *item.tokens[:-1]]]), use_cache=False).logits[0, len(prompt) - 1 :] / 0.8
        values.append(logits.log_softmax(-1).gather(1, torch.tensor(item.tokens)[:, None])[:, 0])
    wanted = torch.cat(values)
    torch.testing.assert_close(flat, wanted, rtol=1e-6, atol=1e-7)
    weights = torch.randn(len(wanted), generator=source, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((one * weights).sum(), learning) for one in (flat, wanted))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert all(float(gradient.abs().max()) > 0 for gradient in ours)


def test_a_groups_prompt_takes_its_first_rollouts_routing(sparse: Path) -> None:
    def rollout(index: int, fill: int) -> Rollout:
        text = base64.b64encode(bytes([fill] * (4 + 2) * 4)).decode()
        return Rollout(f"g/{index}", "g", index, [7, 8, 9], [0.0] * 3, [0] * 3, "stop", routing=text)

    group = Group("g", Prompt("p", 0, "", [1, 2, 3, 4]), 0, [Sample(rollout(k, k), reward=float(k)) for k in range(2)])
    given = config(sparse, replay={"routing": "r3"})
    first, second = prepare(Batch(1, 0, [group]), given).groups[0]
    assert first.routing is not None and second.routing is not None
    assert first.routing.unique().tolist() == [0]
    assert second.routing[:4].unique().tolist() == [0] and second.routing[4:].unique().tolist() == [1]
    micro = build(rows_of([first, second], 100), 0)
    assert micro.routing is not None and micro.routing[:, 0].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert choices(micro, [micro.routing])[1].tolist() == second.routing.tolist()
    group.samples[1] = Sample(Rollout("g/1", "g", 1, [7], [0.0], [0], "stop"), reward=1.0)
    with pytest.raises(EngineError, match="recorded expert ids"):
        prepare(Batch(1, 0, [group]), given)


class Watched(SingleProcessTrainer):
    """Keeps what each pass was told to replay."""

    told: list[Tensor | None]

    def _pass(self, micro: Any) -> tuple[Tensor, Tensor]:
        self.told = [*getattr(self, "told", []), micro.routing]
        return super()._pass(micro)


async def test_r2_keeps_the_trainers_own_choice_over_a_batch(sparse: Path, tmp_path: Path, engine: Callable[..., Any]) -> None:
    given = config(sparse)
    batch = await generated(engine(given), given, new=5)
    told = {}
    for routing, epochs in (("r2", 2), ("r2", 1), ("off", 2)):
        options = config(sparse, replay={"routing": routing}, batch={"epochs": epochs}, optimizer={"learning_rate": 0.01})
        trainer = Watched(options, tmp_path, transport(tmp_path))
        result = trainer.train(batch)
        told[routing, epochs] = trainer.told
        assert not result.skipped
    first, *later = told["r2", 2]
    assert first is None and later and all(one is not None and int((one >= 0).sum()) > 0 for one in later)
    assert all(one is None for one in [*told["r2", 1], *told["off", 2]]), "with one step a batch there is nothing to keep"
    assert torch.equal(later[0], later[-1]), "the same choice at every step, whatever the weights have become"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_trainers_layout_fits_a_mixture_of_experts(sparse: Path, dtype: torch.dtype) -> None:
    check_layout(load(sparse, dtype), "tiny")


@pytest.mark.parametrize("routing", ["r2", "r3"])
def test_routing_of_a_dense_model_cannot_be_kept(dense: Path, tmp_path: Path, routing: str) -> None:
    given = config(dense, replay={"routing": routing})
    for start in (
        lambda: SingleProcessTrainer(given, tmp_path, transport(tmp_path)),
        lambda: TorchGenerator(given, "generator/0", transport(tmp_path)),
    ):
        with pytest.raises(ConfigError) as refused:
            start()
        assert refused.value.field == "replay.routing"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=8), st.integers(0, 5))
def test_a_record_keeps_what_came_first(passes: list[tuple[int, int]], resumed: int) -> None:
    """Passes that begin at or before the end of the record and overlap it: each position keeps its first choice."""
    kept: list[int] = [200] * resumed
    record = RoutingRecord(base64.b64encode(bytes(v for v in kept for _ in range(4))).decode() if resumed else None, resumed)
    for fill, (back, count) in enumerate(passes):
        first = max(0, len(kept) - back)
        record.add(first, torch.full((count, 2, 2), fill, dtype=torch.uint8))
        kept += [fill] * max(0, first + count - len(kept))
    assert list(base64.b64decode(record.encode())) == [value for value in kept for _ in range(4)]
    with pytest.raises(EngineError, match="hole"):
        record.add(len(kept) + 1, torch.zeros(1, 2, 2, dtype=torch.uint8))


async def test_a_sample_taken_up_again_keeps_its_record(sparse: Path, engine: Callable[..., Any]) -> None:
    given = config(sparse, sampling={"top_k": 4}, replay={"routing": "r3", "sampling_mask": True})
    generator = engine(given)
    whole = (await generated(generator, given)).groups[1].samples[0].rollout
    positions, width = len(PROMPTS[1]) + 3, 4  # of a sample aborted with four tokens
    assert whole.routing is not None and whole.support is not None
    aborted = replace(
        whole,
        token_ids=whole.token_ids[:4],
        logprobs=whole.logprobs[:4],
        versions=whole.versions[:4],
        support=whole.support[:4],
        routing=base64.b64encode(base64.b64decode(whole.routing)[: positions * width]).decode(),
        finish_reason="abort",
    )
    request = SampleRequest("g1/0", "g1", 0, PROMPTS[1], key=100, max_new_tokens=9, temperature=1.0, top_k=4)
    again = await generator.generate(AbortPrefix().again(request, aborted))
    assert (again.token_ids, again.support, again.routing) == (whole.token_ids, whole.support, whole.routing)
    fresh = AbortPrefix().again(request, replace(aborted, token_ids=[], logprobs=[], versions=[], support=[], routing=""))
    assert (await generator.generate(fresh)).routing == whole.routing
    for lost in ({"support": None}, {"routing": None}):
        with pytest.raises(EngineError, match="came with the record of 0"):
            await generator.generate(AbortPrefix().again(request, replace(aborted, **lost)))


@pytest.mark.parametrize("experts", [False, True])
async def test_a_trainer_that_keeps_both_sees_no_mismatch(sparse: Path, tmp_path: Path, engine: Callable[..., Any], experts: bool) -> None:
    """Through a whole step: the engine's policy and the trainer's are one, and what was trained can be restored."""
    blocks: dict[str, Any] = {"sampling": {"top_k": 4}, "lora": {"rank": 2, "moe_experts": experts}, "optimizer": {"learning_rate": 0.01}}
    given = config(sparse, **blocks, replay={"routing": "r3", "sampling_mask": True})
    batch = await generated(engine(given), given)
    trainer = SingleProcessTrainer(given, tmp_path, transport(tmp_path))
    result = trainer.train(batch)
    assert abs(result.metrics["loss/kl_mismatch"]) < 1e-5 and not result.skipped
    unaware = SingleProcessTrainer(config(sparse, **blocks), tmp_path, transport(tmp_path))
    assert abs(unaware.train(batch).metrics["loss/kl_mismatch"]) > 0.01
    trainer.checkpoint(tmp_path / "saved")
    again = SingleProcessTrainer(given, tmp_path, transport(tmp_path))
    again.checkpoint(tmp_path / "saved", restore=True)
    masters = trainer._adapters.masters
    assert all(torch.equal(master, masters[name]) for name, master in again._adapters.masters.items())
    assert any(".lora_B." in name and bool(master.any()) for name, master in masters.items() if ("experts" in name) == experts)


async def test_whole_experts_learn_travel_and_serve(tmp_path: Path, engine: Callable[..., Any]) -> None:
    """lora off, payload expert_shards: experts that nobody chose are not sent again, and engine and trainer stay one policy."""
    folder = make_tiny_moe_model(tmp_path / "many", seed=1, experts=16, chosen=1)
    options = {"lora": {"kind": "off"}, "transport": {"kind": "filesystem", "payload": "expert_shards"}}
    given = config(folder, **options, replay={"routing": "r3"}, optimizer={"learning_rate": 0.003})
    generator = engine(given)
    trainer = SingleProcessTrainer(given, tmp_path, transport(tmp_path))
    sent = []
    for version in (1, 2):
        batch = replace(await generated(generator, given, new=4), step=version, version=version - 1)
        assert abs(trainer.train(batch).metrics["loss/kl_mismatch"]) < 1e-5
        manifest = trainer.publish(version, ["generator/0"])
        sent.append((manifest.base, manifest.note["experts_sent"]))
        report = await generator.update(manifest)
        assert report.version == version
    assert sent[0] == (None, 32.0) and sent[1][0] == 1 and 0 < sent[1][1] < 32
    after = await generated(generator, given, new=4)
    with torch.no_grad():
        ours, theirs = trained(trainer._model, after, given)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)

"""A checkpoint answers a prompt beside its base model, and is exported as PEFT and transformers load it, with its card."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.test_run import workers
from tests.workers.test_starting import disturb, made
from workers import comparing, starting
from workers.contract.errors import ExitCode
from workers.environments.rendering import Renderer

__all__ = ["made"]
PROMPTS = ["What is 2 + 2?", "Say yes."]


@pytest.fixture(scope="module")
def trained(made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints whose weights are far from the base model, in the folders of their attempts."""
    base = tmp_path_factory.mktemp("trained")
    found = {"model": made["model"]}
    for kind, file in (("adapter", "adapter_model.safetensors"), ("whole", "model.safetensors")):
        attempt = made[kind].parent.parent
        (base / kind / "checkpoints").mkdir(parents=True)
        for name in ("provenance.json", "summary.json"):
            (base / kind / name).write_text((attempt / name).read_text())
        found[kind] = disturb(made[kind], base / kind / "checkpoints/step-000002", file)
    return found


def probe(tmp_path: Path, code: int = 0, **spec: Any) -> tuple[dict[str, Any], str]:
    path, out = tmp_path / "spec.json", tmp_path / "result.json"
    path.write_text(json.dumps({"prompts": PROMPTS, "max_new_tokens": 12, "out": str(out), **spec}))
    done = workers("probe", path, code=code)
    return (json.loads(out.read_text()) if out.exists() else {}), done.stdout + done.stderr


def reference(model: Any, ids: list[int], completion: list[int]) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *completion]])).logits[0, len(ids) - 1 : -1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("kind", ["adapter", "whole"])
def test_both_models_answer_and_every_log_prob_is_theirs(trained: dict[str, Path], tmp_path: Path, kind: str) -> None:
    found, said = probe(tmp_path, model=str(trained["model"]), checkpoint=str(trained[kind]), sampling={"temperature": 1.0, "seed": 3})
    assert "the model is loaded" in said and "trained: " in said
    config = starting.look(trained[kind], "x").config
    ids = [Renderer(trained["model"], config.environment.system_prompt).render(prompt) for prompt in PROMPTS]
    base = comparing.load(config, trained["model"])
    learnt = comparing.trained(config, comparing.load(config, trained["model"]), trained[kind]).model
    assert [answer["prompt"] for answer in found["answers"]] == PROMPTS
    for answer, prompt_ids in zip(found["answers"], ids, strict=True):
        for side, model in (("base", base), ("trained", learnt)):
            tokens = answer[side]["tokens"]
            assert 1 <= len(tokens["ids"]) == len(tokens["text"]) == len(tokens["logprobs"]) <= 12
            assert tokens["logprobs"] == pytest.approx(reference(model, prompt_ids, tokens["ids"]), abs=2e-3)
            assert tokens[f"{side}_logprobs"] == pytest.approx(tokens["logprobs"], abs=2e-3)
            other, name = (learnt, "trained_logprobs") if side == "base" else (base, "base_logprobs")
            assert tokens[name] == pytest.approx(reference(other, prompt_ids, tokens["ids"]), abs=2e-3)
    assert found["answers"][0]["base"]["tokens"]["ids"] != found["answers"][0]["trained"]["tokens"]["ids"]


def test_the_base_model_alone_and_the_same_numbers_again(trained: dict[str, Path], tmp_path: Path) -> None:
    model = {"path": str(trained["model"]), "dtype": "float32"}
    greedy, _ = probe(tmp_path, model=model, sampling={"temperature": 0}, prompts=["x"], max_new_tokens=2)
    assert greedy["answers"][0]["base"]["tokens"]["logprobs"] == [0.0, 0.0]
    first, _ = probe(tmp_path, model=model, sampling={"seed": 5})
    again, _ = probe(tmp_path, model=model, sampling={"seed": 5})
    assert first["answers"] == [{**answer, "base": {**answer["base"], "seconds": first["answers"][index]["base"]["seconds"]}}
                                for index, answer in enumerate(again["answers"])]  # fmt: skip
    assert first["answers"][0]["trained"] is None and first["checkpoint"] is None


def test_what_is_wrong_with_a_probe_is_named_in_its_answer(trained: dict[str, Path], tmp_path: Path) -> None:
    from workers import probe as module
    from workers.contract.errors import HeadraceError

    good = {"model": str(trained["model"]), "prompts": ["x"], "out": str(tmp_path / "result.json")}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"prompts": []}, "prompts"),
        ({"prompts": ["x"] * 9}, "prompts"),
        ({"prompts": [" "]}, "prompts.0"),
        ({"prompts": ["x" * 600]}, "prompts.0"),
        ({"max_new_tokens": 513}, "max_new_tokens"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature"),
        ({"sampling": {"heat": 1}}, "sampling.heat"),
        ({"checkpoint": str(tmp_path / "nowhere")}, "checkpoint"),
        ({"model": "/nowhere"}, "model.path"),
    ]
    for change, field in wrong:
        (tmp_path / "spec.json").write_text(json.dumps({**good, **change}))
        with pytest.raises(HeadraceError) as caught:
            module.run(tmp_path / "spec.json", lambda _: None)
        told = json.loads((tmp_path / "result.json").read_text())["error"]
        assert caught.value.field == told["field"] == field and told["cure"], change
    (tmp_path / "spec.json").write_text("[")
    done = workers("probe", tmp_path / "spec.json", code=ExitCode.USAGE)
    assert "error: SPEC: " in done.stderr


def test_an_exported_adapter_is_loaded_by_peft_with_equal_logits(trained: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    workers("export", trained["adapter"], "--out", out)
    assert sorted(item.name for item in out.iterdir()) == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    config = starting.look(trained["adapter"], "x").config
    peft: Any = import_module("peft")
    ours = comparing.trained(config, comparing.load(config, trained["model"]), trained["adapter"]).model
    theirs = peft.PeftModel.from_pretrained(comparing.load(config, trained["model"]), out)
    plain = comparing.load(config, trained["model"])
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)
        assert (plain(ids).logits - theirs(ids).logits).abs().max() > 0.01
    card = (out / "README.md").read_text()
    for word in (
        'library_name: "peft"',
        "chain_sum",
        "| Steps | `2` |",
        "## Held-out rewards",
        "| 2 | 2 | ",
        "torch",
        "## Licence",
        "PeftModel",
    ):
        assert word in card, word
    done = workers("export", trained["adapter"], "--out", out, code=ExitCode.USAGE)
    assert "--out" in done.stderr


def test_whole_weights_are_exported_as_transformers_loads_them(trained: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    workers("export", trained["whole"], "--out", out)
    names = {item.name for item in out.iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not names & {"optimizer.safetensors", "driver.json", "trainer.json", "MANIFEST.json"}
    config = starting.look(trained["whole"], "x").config
    ours = comparing.trained(config, comparing.load(config, trained["model"]), trained["whole"]).model
    theirs = comparing.load(config, out)
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


def test_a_merged_run_is_exported_with_the_adapter_in_its_weights(trained: dict[str, Path], tmp_path: Path) -> None:
    from workers import export

    checkpoint = tmp_path / "merged/checkpoints/step-000002"
    disturbed = trained["adapter"]
    checkpoint.parent.mkdir(parents=True)
    config = starting.look(disturbed, "x").config
    state = json.loads((disturbed / "driver.json").read_text())
    state["config"]["lora"]["kind"], state["config"]["transport"]["payload"] = "merged", "merged_adapter"
    rewrite(disturbed, checkpoint, state)
    names = export.run(checkpoint, tmp_path / "out")
    assert {"README.md", "config.json", "model.safetensors"} <= set(names) and "adapter_config.json" not in names
    ours = comparing.trained(config, comparing.load(config, trained["model"]), disturbed).model
    theirs = comparing.load(config, tmp_path / "out")
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=1e-4, rtol=1e-4)
    assert 'library_name: "transformers"' in (tmp_path / "out/README.md").read_text()


def rewrite(source: Path, target: Path, state: dict[str, Any]) -> None:
    """A checkpoint with another driver.json, its manifest made anew."""
    import hashlib
    import shutil

    shutil.copytree(source, target)
    data = json.dumps(state).encode()
    (target / "driver.json").write_bytes(data)
    manifest = json.loads((target / "MANIFEST.json").read_text())
    manifest["files"]["driver.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (target / "MANIFEST.json").write_text(json.dumps(manifest))


def test_an_export_of_what_is_no_checkpoint_writes_nothing(trained: dict[str, Path], tmp_path: Path) -> None:
    done = workers("export", trained["model"], "--out", tmp_path / "out", code=ExitCode.USAGE)
    assert "CHECKPOINT" in done.stderr and not list(tmp_path.iterdir())

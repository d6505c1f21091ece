"""Models by name: what is accepted, what is refused with which words, and that the built-in one answers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.workers.tiny_model import make_tiny_model
from workers import models
from workers.contract.errors import EnvironmentMissing


def refused(path: str) -> EnvironmentMissing:
    with pytest.raises(EnvironmentMissing) as caught:
        models.locate(path)
    assert caught.value.field == "model.path"
    assert caught.value.cure
    return caught.value


def test_a_local_folder_is_found_and_loads(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = models.locate(str(make_tiny_model(tmp_path / "tiny")))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "3 + é"}], tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(tokenizer(rendered).input_ids) == rendered
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.eos_token_id == model.config.eos_token_id == 2


def test_code_in_a_model_folder_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}))
    assert "auto_map" in str(refused(str(folder)))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = refused(str(folder))
    assert "pytorch_model.bin" in str(error)
    assert "safetensors" in str(error.cure)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_incomplete_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = make_tiny_model(tmp_path)
    (folder / name).unlink()
    assert refused(str(folder)).cure


@pytest.mark.parametrize("path", ["no-such-model", "/no/such/folder", "./nothing", "a/b/c/d"])
def test_names_that_are_nothing_are_refused_without_asking_the_hub(path: str) -> None:
    assert refused(path).cure


def test_a_hub_id_offline_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "local folder" in str(refused("headrace-nobody/no-such-model").cure)


def test_the_digest_follows_the_bytes(tmp_path: Path) -> None:
    one, same, other = (make_tiny_model(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert models.digest(one) == models.digest(same) != models.digest(other)
    weights = one / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert models.digest(one) != models.digest(same)


@pytest.mark.model
def test_the_built_in_model_is_prepared_once_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("HEADRACE_MODELS", str(tmp_path))
    folder = models.locate(models.BUILT_IN)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(models.locate, [models.BUILT_IN] * 2)) == [folder, folder]
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [item.name for item in tmp_path.iterdir()] == [models.BUILT_IN]
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == 2
    chat = [
        {"role": "system", "content": "Answer with the final answer only."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, do_sample=False, max_new_tokens=16)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)

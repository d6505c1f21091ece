"""Tasks, prompts and answers: what is asked, what is held out, what is read from a completion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tests.workers.tiny_model import make_tiny_model, make_tiny_tokenizer
from workers.contract.config import RunConfig
from workers.contract.errors import CheckpointError, ConfigError, DataError, EnvironmentMissing
from workers.contract.loading import resolve
from workers.environments.build import LanguageEnvironment, build, make_task
from workers.environments.extract import choose, extract
from workers.environments.rendering import Renderer
from workers.environments.source import PromptSource
from workers.models import BUILT_IN, locate
from workers.records import Prompt


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def environment(model: Path, *sets: str) -> LanguageEnvironment:
    return build(resolve(sets=sets), model)


def test_a_prompt_is_the_template_applied_once(model: Path) -> None:
    made = environment(model)
    prompt = made.source.next()
    assert bytes(made.tokens(prompt.token_ids)[-1], "utf-8") == b"\n"
    text = "".join(made.tokens(prompt.token_ids))
    assert text == (
        f"<|im_start|>system\nAnswer with the number only.<|im_end|>\n<|im_start|>user\n{prompt.text}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert made.decode(prompt.token_ids).startswith("system\nAnswer")
    assert prompt.id == f"chain_sum:{prompt.index}"


def test_the_datasets_own_verifier_judges(model: Path) -> None:
    made = environment(model)
    prompt = made.source.next()
    assert made.verify(prompt, f"It is {prompt.answer}.") == (1.0, prompt.answer)
    assert made.verify(prompt, "I do not know") == (0.0, None)
    assert made.verify(prompt, "1234567") == (0.0, "1234567")
    held_out = made.evaluation_prompts[0]
    assert made.verify(held_out, str(held_out.answer))[0] == 1.0


def test_held_out_questions_are_never_trained_on(model: Path) -> None:
    made = environment(model)
    held_out = {prompt.text for prompt in made.evaluation_prompts}
    asked = [made.source.next().text for _ in range(1000)]
    assert not held_out & set(asked)
    assert len(made.evaluation_prompts) == 64 and len(set(asked)) > 100


def test_a_task_of_very_few_questions_keeps_most_for_training(model: Path) -> None:
    options = 'environment.options={"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 1}'
    made = environment(model, options)
    held_out = {prompt.text for prompt in made.evaluation_prompts}
    asked = {made.source.next().text for _ in range(300)}
    assert held_out and asked and not held_out & asked and len(asked) >= len(held_out)


def test_the_same_seed_asks_the_same_and_another_does_not(model: Path) -> None:
    first, again, other = (environment(model, f"seed={seed}") for seed in (3, 3, 4))
    asked = [[made.source.next().text for _ in range(20)] for made in (first, again, other)]
    assert asked[0] == asked[1] != asked[2]
    assert first.data_digest == again.data_digest != other.data_digest
    assert [prompt.text for prompt in first.evaluation_prompts] == [prompt.text for prompt in again.evaluation_prompts]


@pytest.mark.parametrize(
    ("sets", "field", "words"),
    [
        (["environment.dataset=chain_sums"], "environment.dataset", "chain_sum"),
        (["environment.dataset=zzqqzz"], "environment.dataset", "choose one of: ab,"),
        (["environment.dataset=some/folder"], "environment.dataset", ".jsonl"),
        (["environment.options.min_term=2"], "environment.options.min_term", "min_terms"),
        (["environment.options.seed=2"], "environment.options.seed", "run's seed"),
        (["environment.options.size=2"], "environment.options.size", "environment.size"),
        (["environment.options.min_terms=9"], "environment.options", "max_terms must be >="),
        (["environment.options.min_terms=two"], "environment.options", "min_terms"),
        (["environment.options.max_terms=2.5"], "environment.options", "min_terms"),
    ],
)
def test_a_wrong_task_names_field_and_cure(sets: list[str], field: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_task(resolve(sets=sets))
    assert caught.value.field == field and words in str(caught.value)


@pytest.mark.parametrize(("dataset", "kind"), [("leg_counting", "last_number"), ("spell_backward", "last_line")])
def test_another_dataset_runs_by_its_name_alone(model: Path, dataset: str, kind: str) -> None:
    made = environment(model, f"environment.dataset={dataset}", "sampling.max_new_tokens=8", "evaluation.prompts=4", "environment.size=40")
    assert made.answer_kind == kind
    prompt = made.source.next()
    assert made.verify(prompt, f"Let me see.\n{prompt.answer}")[0] == 1.0


def test_a_prompt_too_long_for_the_model_is_told_before_the_start(model: Path) -> None:
    with pytest.raises(DataError, match="exceeds the model's 512"):
        environment(model, "sampling.max_new_tokens=500")


def test_every_stop_id_counts(model: Path, tmp_path: Path) -> None:
    assert Renderer(model, "").stop_ids == [2]
    make_tiny_model(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    assert Renderer(tmp_path, "").stop_ids == [2, 5, 9]


def test_a_template_without_a_system_turn_gets_the_prompt_in_front(tmp_path: Path) -> None:
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}[{{ m['content'] }}]{% endfor %}"
    )
    tokenizer.save_pretrained(tmp_path)
    made = Renderer(tmp_path, "Be brief.")
    assert made.decode(made.render("1 + 1")) == "[Be brief.\n\n1 + 1]"
    tokenizer.chat_template = None
    plain = tmp_path / "plain"
    tokenizer.save_pretrained(plain)
    bare = Renderer(plain, "Be brief.")
    assert bare.decode(bare.render("1 + 1")) == "Be brief.\n\n1 + 1\n"
    assert made.template_hash != bare.template_hash != Renderer(plain, "Be long.").template_hash


@pytest.mark.model
def test_a_tokenizer_loaded_without_torch_is_the_one_that_transformers_chooses() -> None:
    folder = locate(BUILT_IN)
    ours, theirs = Renderer(folder, "Be brief."), AutoTokenizer.from_pretrained(folder)
    assert type(ours._tokenizer) is PreTrainedTokenizerFast

    @given(st.text(max_size=60))
    @settings(max_examples=200, deadline=None)
    def alike(text: str) -> None:
        turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        ids = ours.render(text)
        assert ids == theirs.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)

    alike()
    assert ours._tokenizer.eos_token_id == theirs.eos_token_id


def test_a_folder_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissing) as caught:
        Renderer(tmp_path, "")
    assert caught.value.field == "model.path"


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("last_number", "8-3", "3"),
        ("last_number", "8 - 3 = 5.", "5"),
        ("last_number", "it is -5", "-5"),
        ("last_number", "= −5", "-5"),
        ("last_number", "so 1,234.50 dollars", "1234.50"),
        ("last_number", "1, 2", "2"),
        ("last_number", "+7", "7"),
        ("last_number", "none", None),
        ("answer_tag", "<answer>1</answer> <answer> 2 </answer>", "2"),
        ("answer_tag", "<answer>1", None),
        ("answer_tag", "<answer></answer>", None),
        ("last_line", "a\n b \n\n", "b"),
        ("last_line", " \n", None),
        ("whole", " a\nb ", "a\nb"),
        ("whole", "", None),
    ],
)
def test_answers_are_read_as_the_config_says(kind: str, text: str, answer: str | None) -> None:
    assert extract(kind, text) == answer


def test_auto_reads_numbers_where_all_answers_are_numbers() -> None:
    assert choose("auto", ["1", "-2.5"]) == "last_number"
    assert choose("auto", ["1", "cat"]) == choose("auto", [None]) == "last_line"
    assert choose("whole", ["1"]) == "whole"


def prompts(seen: set[int] | None = None) -> Any:
    skipped = seen or set()
    return lambda index: None if index in skipped else Prompt(id=f"t:{index}", index=index, text="", token_ids=[1])


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 30), st.integers(0, 5), st.integers(0, 80), st.integers(0, 80), st.sets(st.integers(1, 29), max_size=20))
def test_a_restored_cursor_goes_on_with_the_same_sequence(size: int, seed: int, before: int, after: int, skipped: set[int]) -> None:
    whole = PromptSource(size, seed, "d", prompts(skipped))
    sequence = [whole.next().index for _ in range(before + after)]
    first = PromptSource(size, seed, "d", prompts(skipped))
    head = [first.next().index for _ in range(before)]
    second = PromptSource(size, seed, "d", prompts(skipped))
    second.restore(first.state())
    assert head + [second.next().index for _ in range(after)] == sequence


@given(st.integers(1, 40), st.integers(0, 9))
def test_every_prompt_comes_once_an_epoch(size: int, seed: int) -> None:
    source = PromptSource(size, seed, "d", prompts())
    for _ in range(3):
        assert sorted(source.next().index for _ in range(size)) == list(range(size))


def test_a_foreign_cursor_is_refused() -> None:
    source = PromptSource(4, 1, "d", prompts())
    good = source.state()
    for change in ({"size": 5}, {"seed": 2}, {"digest": "e"}, {"position": 5}, {"position": -1}, {"epoch": "0"}, {"epoch": None}):
        with pytest.raises(CheckpointError):
            source.restore({**good, **change})


def test_a_source_of_held_out_questions_alone_says_so() -> None:
    with pytest.raises(DataError, match="held out"):
        PromptSource(3, 1, "d", prompts({0, 1, 2})).next()


def test_provenance_names_data_and_template(model: Path) -> None:
    made = environment(model)
    facts = made.provenance()
    assert facts["dataset"] == "chain_sum" and facts["template_hash"] == made.template_hash and facts["answer"] == "last_number"
    assert RunConfig.model_validate(resolve().as_json()).environment.dataset == facts["dataset"]

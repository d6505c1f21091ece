"""The model card of an export: what it is, what it was trained on and how, what it scores, and how to load it."""

from __future__ import annotations

import json
from typing import Any

from workers import models
from workers.starting import Start

BUILT_IN_BASE = (
    "The base model is Headrace's built-in one, which transformers does not know by that name: the lines above find its folder where"
    " Headrace is installed. It was made from a quantised SmolLM2-135M-Instruct, so the hub's HuggingFaceTB/SmolLM2-135M-Instruct is close"
    " to it and not the same bits."
)
TITLES = {"adapter_only": "LoRA adapter", "merged": "model with its LoRA adapter merged in", "off": "model, every weight trained"}
LOADING = {
    "adapter_only": """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = {base}
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype="{dtype}"), "this folder")
tokenizer = AutoTokenizer.from_pretrained(base)""",
    "whole": """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("this folder", dtype="{dtype}")
tokenizer = AutoTokenizer.from_pretrained("this folder")""",
}


def card(start: Start) -> str:
    """Markdown with the front matter that model hubs read. What is not known is left out, never guessed."""
    config, progress, kind = start.config, start.state.get("progress", {}), start.config.lora.kind
    known = start.provenance()
    samples = start.state.get("samples", {})
    rows: list[tuple[str, Any]] = [
        ("Base model", config.model.path),
        ("Digest of the base model", start.model_digest),
        ("Preset", config.preset),
        ("Config digest", start.checkpoint.config_digest),
        ("Task", config.environment.dataset),
        ("System prompt", config.environment.system_prompt or None),
        ("Loss", config.loss.policy),
        ("LoRA", None if kind == "off" else f"rank {config.lora.rank}, alpha {config.lora.alpha:g}"),
        ("Learning rate", f"{config.optimizer.learning_rate:g}"),
        ("Steps", start.checkpoint.step),
        ("Policy version", start.checkpoint.version),
        ("Samples trained", samples.get("trained")),
        ("Completion tokens trained", progress.get("tokens_trained")),
        ("Started from", config.model.init_from),
        ("Seed", config.seed),
    ]
    parts = [
        _front_matter(start),
        f"# {_plain(config.model.path.rstrip('/').rpartition('/')[2])}: {TITLES[kind]}",
        f"Trained by asynchronous reinforcement learning with Headrace; the checkpoint of step {start.checkpoint.step}.",
        _table(rows),
        "## Held-out rewards",
        _scores(start.evaluations()),
        "## How to load it",
        f"```python\n{_loading(start)}\n```",
        *([BUILT_IN_BASE] if kind == "adapter_only" and config.model.path == models.BUILT_IN else []),
        "Prompts were rendered with the model's own chat template, the system prompt above in front.",
        "## What it ran on",
        _table(_machine(known)),
        "## Licence",
        "These weights are derived from the base model: its licence and its terms of use hold for them. Look them up before you pass"
        " this on. What the data of the task may be used for is to be looked up as well.",
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(start: Start) -> str:
    adapter = start.config.lora.kind == "adapter_only"
    values = {
        "base_model": start.config.model.path,
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "headrace", *(["lora"] if start.config.lora.kind != "off" else [])],
    }
    return "---\n" + "\n".join(f"{name}: {json.dumps(value)}" for name, value in values.items()) + "\n---"  # JSON is YAML


def _scores(evaluations: list[dict[str, Any]]) -> str:
    if not evaluations:
        return "None was measured."
    lines = ["| Step | Version | Mean reward | Standard error | Prompts |", "| --- | --- | --- | --- | --- |"]
    for row in evaluations:
        spread = f"{row['stderr']:.4f}" if isinstance(row.get("stderr"), int | float) else "not kept"
        lines.append(f"| {row['step']} | {row['version']} | {row['mean']:.4f} | {spread} | {row['n']} |")
    return "\n".join(lines)


def _machine(known: dict[str, Any]) -> list[tuple[str, Any]]:
    cpu, memory = known.get("cpu") or {}, known.get("memory_bytes")
    rows = [
        ("Processor", cpu.get("model")),
        ("Cores", cpu.get("count")),
        ("Memory", f"{memory / 2**30:.1f} GiB" if memory else None),
        ("System", known.get("platform")),
        ("Python", known.get("python")),
    ]
    return [*rows, *(known.get("packages") or {}).items()]


def _loading(start: Start) -> str:
    words = LOADING["adapter_only" if start.config.lora.kind == "adapter_only" else "whole"]
    # Whole weights are saved as the optimizer holds them, in float32.
    dtype = "float32" if start.config.lora.kind == "off" else start.config.model.dtype
    name = json.dumps(start.config.model.path)
    if start.config.model.path != models.BUILT_IN:
        return words.format(base=name, dtype=dtype)
    found = words.format(base=f"models.locate({name})", dtype=dtype)
    return found.replace("\n\n", "\nfrom workers import models\n\n", 1) if "models.locate" in found else found


def _table(rows: list[tuple[str, Any]]) -> str:
    lines = [f"| {_plain(name)} | `{_plain(str(value))}` |" for name, value in rows if value is not None]
    return "\n".join(["| | |", "| --- | --- |", *lines]) if lines else "Nothing is known of it."


def _plain(text: str) -> str:
    """One line of a table: no column, code or line ends in it."""
    return " ".join(text.replace("`", "'").replace("|", "/").split())[:300]

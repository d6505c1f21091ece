"""The one place where text becomes token ids, and back. The only import of transformers outside model loading."""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

from workers.contract.errors import EnvironmentMissing

# Tokenizers that are their tokenizer.json and nothing else. To look for another class loads torch and all that models need: 3 s.
PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")


class Renderer:
    """Applies the model's own chat template once, at dispatch; from there on only token ids travel.

    A template that refuses a system turn gets the system prompt in front of the question; a model without a template
    gets both as plain text. `template_hash` covers the template, the system prompt and which of these ways is used.
    """

    def __init__(self, folder: Path, system_prompt: str) -> None:
        self._system = system_prompt
        self._tokenizer = _load(folder)
        self._way = self._choose_way()
        self.stop_ids = self._stop_ids(folder)
        self.max_positions = _read(folder / "config.json").get("max_position_embeddings")
        template = self._tokenizer.chat_template
        parts = [json.dumps(template, sort_keys=True) if isinstance(template, dict) else template, system_prompt, self._way]
        self.template_hash = hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def render(self, question: str) -> list[int]:
        """Token ids of the whole prompt, ready for the model to answer."""
        if self._way == "plain":
            text = "\n\n".join(part for part in (self._system, question) if part) + "\n"
            return [int(token) for token in self._tokenizer(text)["input_ids"]]
        return self._apply(self._messages(question, self._way), generate=True)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def tokens(self, ids: list[int]) -> list[str]:
        return [str(self._tokenizer.decode([token], skip_special_tokens=False)) for token in ids]

    def _choose_way(self) -> str:
        if not self._tokenizer.chat_template:
            return "plain"
        if not self._system:
            return "question"
        try:
            self._apply(self._messages("1 + 1", "system"), generate=True)
        except Exception:  # templates refuse by raising whatever they like, mostly jinja2's TemplateError
            return "merged"
        return "system"

    def _messages(self, question: str, way: str) -> list[dict[str, str]]:
        if way == "system":
            return [{"role": "system", "content": self._system}, {"role": "user", "content": question}]
        content = f"{self._system}\n\n{question}" if way == "merged" else question
        return [{"role": "user", "content": content}]

    def _apply(self, messages: list[dict[str, str]], generate: bool) -> list[int]:
        ids = self._tokenizer.apply_chat_template(messages, add_generation_prompt=generate, tokenize=True, return_dict=False)
        return [int(token) for token in ids]

    def _stop_ids(self, folder: Path) -> list[int]:
        """Every id that ends a completion: of generation_config, config, the tokenizer, and what closes the assistant's turn."""
        found: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            given = _read(folder / name).get("eos_token_id")
            found.update(token for token in (given if isinstance(given, list) else [given]) if isinstance(token, int))
        if self._tokenizer.eos_token_id is not None:
            found.add(int(self._tokenizer.eos_token_id))
        found.update(self._chat_end())
        if not found:
            raise EnvironmentMissing(
                "the model names no token that ends a completion",
                field="model.path",
                value=str(folder),
                cure="set eos_token_id in its generation_config.json",
            )
        return sorted(found)

    def _chat_end(self) -> list[int]:
        """The special token after an assistant's words, read from the template itself."""
        if self._way == "plain":
            return []
        question = self._messages("1 + 1", self._way)
        opening = len(self._apply(question, generate=True))
        try:
            closed = self._apply([*question, {"role": "assistant", "content": "2"}], generate=False)
        except Exception:  # a template for single questions only has no assistant turn to close
            return []
        special = {token for token, added in self._tokenizer.added_tokens_decoder.items() if added.special}
        return [token for token in closed[opening:] if token in special][:1]


def _load(folder: Path) -> Any:
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise EnvironmentMissing(
            "the package transformers is not installed", field="model.path", value=str(folder), cure='pip install "headrace[engine]"'
        ) from error
    plain = _read(folder / "tokenizer_config.json").get("tokenizer_class") in PLAIN and (folder / "tokenizer.json").is_file()
    loader = transformers.PreTrainedTokenizerFast if plain else transformers.AutoTokenizer
    try:
        return loader.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EnvironmentMissing(
            f"its tokenizer cannot be loaded: {error}", field="model.path", value=str(folder), cure="give a folder with a tokenizer"
        ) from error


def _read(path: Path) -> dict[str, Any]:
    """A JSON file of the model folder; {} when there is none."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EnvironmentMissing(
            f"{path.name} of the model is not JSON: {error}", field="model.path", value=str(path.parent), cure="repair the model folder"
        ) from error
    return data if isinstance(data, dict) else {}

"""A real but tiny language model: random Llama weights in safetensors, a byte-level tokenizer with a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

SPECIALS = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and three special ones: pad 0, start 1, end 2."""
    letters = SPECIALS + sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(BPE({letter: index for index, letter in enumerate(letters)}, [], unk_token=None))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(SPECIALS)
    make: Any = PreTrainedTokenizerFast  # transformers declares no types for it
    tokenizer: PreTrainedTokenizerFast = make(tokenizer_object=inner, pad_token=SPECIALS[0], bos_token=SPECIALS[1], eos_token=SPECIALS[2])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_tiny_model(folder: Path, seed: int = 0, layers: int = 2, hidden: int = 64, heads: int = 4, kv_heads: int = 2) -> Path:
    """Writes model and tokenizer into `folder` and returns it. The same seed writes the same weights."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.1,  # wide enough that next-token distributions differ from uniform
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tiny_moe_model(
    folder: Path, seed: int = 0, layers: int = 2, hidden: int = 32, experts: int = 4, chosen: int = 2, **changes: Any
) -> Path:
    """A Qwen3-MoE with the same tokenizer. Routers are wide enough that tokens choose different experts."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tiny_tokenizer()
    values: dict[str, Any] = {
        "intermediate_size": hidden * 2,
        "moe_intermediate_size": hidden // 2,
        "num_hidden_layers": layers,
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "norm_topk_prob": True,
        "head_dim": hidden // 4,  # the config takes it without naming it
        **changes,
    }
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **values,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3MoeForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

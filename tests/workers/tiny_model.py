"""The tiny random models, where tests look for them."""

from __future__ import annotations

from workers.tiny import CHAT_TEMPLATE, SPECIALS, make_tiny_model, make_tiny_moe_model, make_tiny_tokenizer

__all__ = ["CHAT_TEMPLATE", "SPECIALS", "make_tiny_model", "make_tiny_moe_model", "make_tiny_tokenizer"]

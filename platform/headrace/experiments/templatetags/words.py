"""How the contract's sentences are shown: `words` between backticks become code. Everything else is escaped."""

from __future__ import annotations

import re

from django import template
from django.utils.html import conditional_escape
from django.utils.safestring import SafeString, mark_safe

register = template.Library()
_TICKS = re.compile(r"`([^`\n]+)`")


@register.filter
def ticks(text: str) -> SafeString:
    """Called by the form and the help pages on titles and descriptions."""
    return mark_safe(_TICKS.sub(r"<code>\1</code>", str(conditional_escape(text))))

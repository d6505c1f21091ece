"""Structured logs: one JSON object a line on stderr, with secrets blanked out."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

BLANK = "[secret]"
# Our own token prefixes, bearer headers, name=value pairs with a telling name, and passwords inside URLs.
# No pattern may look at a character more than a bounded number of times: strangers choose the text, as a path of 64 KB.
_PATTERNS = [
    (re.compile(r"\bhr[a-z]_[A-Za-z0-9_\-]{16,}"), BLANK),
    (re.compile(r"(?i)(bearer|token)\s+[A-Za-z0-9._~+/=\-]{12,}"), rf"\1 {BLANK}"),
    (
        re.compile(
            r"(?i)((?:password|secret|token|api_?key|authorization|cookie)[a-z_\-]{0,40}[\"']?\s{0,9}[=:]\s{0,9})([\"']?)[^\s\"',;&}]+\2"
        ),
        rf"\1{BLANK}",
    ),
    (re.compile(r"(?i)(\b[a-z][a-z0-9+.\-]{0,30}://[^\s:/@]*:)[^\s@/]+@"), rf"\1{BLANK}@"),
    (re.compile(r"(/setup/)[A-Za-z0-9_\-]{16,}"), rf"\1{BLANK}"),
]
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def redact(text: str) -> str:
    """Blanks what looks like a secret. Called on every line before it leaves the process."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, and whatever was passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "t": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        for name, value in record.__dict__.items():
            if name not in _STANDARD and name not in ("request", "server_time", "status_code"):
                line[name] = redact(str(value))
        if record.exc_info:
            line["error"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def logging_config(level: str) -> dict[str, Any]:
    """LOGGING for settings.py."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": "headrace.logs.JsonFormatter"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": level.upper()},
        "loggers": {
            "django": {"level": level.upper()},
            "django.server": {"handlers": [], "propagate": True},
            # One line a request at httpx would name the cluster's URLs over and over.
            "httpx": {"level": "WARNING"},
        },
    }

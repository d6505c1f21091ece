"""Reading a config from outside: bounds, encodings and shape are checked before any field is looked at."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from workers.contract.errors import ConfigError, HeadraceError

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_VALUES = 100_000
MAX_INTEGER = 2**63 - 1

_FOREIGN_ENCODINGS = ((b"\xff\xfe\x00\x00", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))


def read(path: str | Path) -> dict[str, Any]:
    """The table in a `.toml` or JSON file. Called by the command line. Raises ConfigError naming the file, the place and the cure."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"the config file cannot be read: {reason}", field="spec", value=str(path), cure="give the path of a readable file"
        ) from None
    return parse(data, name=str(path), toml=file.suffix.lower() == ".toml")


def parse(data: bytes | str, *, name: str = "spec", toml: bool = False) -> dict[str, Any]:
    """The table in JSON or TOML text. Duplicate keys, NaN and anything but an object at the top are refused."""
    text = _decode(data, name) if isinstance(data, bytes) else data
    if len(text) > MAX_BYTES:
        raise ConfigError(f"the config is larger than {MAX_BYTES} bytes", field="spec", value=name, cure="give a smaller file")
    try:
        table = tomllib.loads(text) if toml else json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep("spec") from None
    except ConfigError:
        raise
    except ValueError as error:  # JSONDecodeError, TOMLDecodeError and numbers with too many digits
        raise ConfigError(
            f"not valid {'TOML' if toml else 'JSON'}: {error}", field="spec", value=name, cure="correct the file at that place"
        ) from None
    if not isinstance(table, dict):
        raise ConfigError(
            "a config is an object", field="spec", value=type(table).__name__, cure='begin with { and end with }: {"seed": 7}'
        )
    faults = tree_faults(table)
    if faults:
        raise as_config_error(faults)
    return table


def as_config_error(faults: list[HeadraceError]) -> ConfigError:
    """One error that carries all faults, the first of them speaking."""
    first = faults[0]
    return ConfigError(first.message, problems=faults, field=first.field, value=first.value, cure=first.cure)


def tree_faults(value: Any) -> list[HeadraceError]:
    """Faults of plain shape: too deep, too many values, non-finite numbers, huge integers, NUL or lone surrogates, foreign types."""
    faults: list[HeadraceError] = []
    seen = 0
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    while stack:
        path, item, depth = stack.pop()
        seen += 1
        if seen > MAX_VALUES:
            return [ConfigError(f"more than {MAX_VALUES} values", field="spec", cure="give a smaller config")]
        if isinstance(item, dict | list):
            if depth >= MAX_DEPTH:
                return [_too_deep(path or "spec")]
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            for key, inner in pairs:
                if isinstance(item, dict) and (bad := _key_fault(path, key)):
                    faults.append(bad)
                    continue
                stack.append((f"{path}.{key}" if path else str(key), inner, depth + 1))
        elif fault := _leaf_fault(path or "spec", item):
            faults.append(fault)
    return faults


def _key_fault(path: str, key: Any) -> HeadraceError | None:
    if not isinstance(key, str):
        return ConfigError("keys are strings", field=path or "spec", value=key, cure="write the key as a string")
    return _leaf_fault(path or "spec", key)


def _leaf_fault(path: str, item: Any) -> HeadraceError | None:
    if item is None or isinstance(item, bool):
        return None
    if isinstance(item, float):
        if not math.isfinite(item):
            return ConfigError("must be a finite number", field=path, value=item, cure="give a finite number")
    elif isinstance(item, int):
        if abs(item) > MAX_INTEGER:
            return ConfigError("the whole number is too large", field=path, value=f"{item.bit_length()} bits", cure="give less than 2^63")
    elif isinstance(item, str):
        if "\x00" in item:
            return ConfigError("holds a NUL character", field=path, value=item, cure="take it out")
        if not item.isascii() and any("\ud800" <= char <= "\udfff" for char in item):
            return ConfigError("holds half a character (a lone surrogate)", field=path, value=ascii(item)[:120], cure="take it out")
    else:
        return ConfigError(
            "is not a JSON value", field=path, value=type(item).__name__, cure="use objects, lists, strings, numbers, true, false, null"
        )
    return None


def _decode(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        raise ConfigError(f"the config is larger than {MAX_BYTES} bytes", field="spec", value=name, cure="give a smaller file")
    for mark, encoding in _FOREIGN_ENCODINGS:
        if data.startswith(mark):
            raise ConfigError(f"the file is {encoding}, not UTF-8", field="spec", value=name, cure="save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file is not UTF-8 (byte {error.start})", field="spec", value=name, cure="save it as UTF-8") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError("the key stands twice in one object", field=twice, cure="keep one of them")
    return table


def _no_constant(name: str) -> NoReturn:
    raise ConfigError("JSON has no such number", field="spec", value=name, cure="give a finite number")


def _too_deep(field: str) -> ConfigError:
    return ConfigError(f"nested deeper than {MAX_DEPTH} levels", field=field[:200], cure="give a flatter config")

"""Settings as TOML text."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dada.safe_files import read_bytes
from dada.safe_text import printable

MOST_BYTES = 2**20  # settings take some hundred


def read_toml(file: Path) -> dict[str, Any]:
    """What `to_toml` wrote; the error names the file."""
    try:
        return tomllib.loads(read_bytes(file, most=MOST_BYTES).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not readable as TOML: {printable(error)}") from None


def flat(table: Mapping[str, Any], between: str = ".", prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}, so that a difference can be named."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, between, f"{prefix}{key}{between}")
        else:
            found[f"{prefix}{key}"] = value
    return found


def to_toml(settings: Mapping[str, Any]) -> str:
    """TOML text of nested dicts of str, path, bool, int, float and lists; None is left out."""
    return "\n".join(_toml_table(settings, prefix="")).lstrip("\n") + "\n"


def _toml_table(table: Mapping[str, Any], prefix: str) -> list[str]:
    # Plain values first: in TOML whatever follows a [header] belongs to that header.
    present = {key: value for key, value in table.items() if value is not None}
    tables = {key: value for key, value in present.items() if isinstance(value, Mapping)}
    lines = [
        f"{_toml_key(key)} = {_toml_value(value, prefix + str(key))}"
        for key, value in present.items()
        if key not in tables
    ]
    for key, inner in tables.items():
        name = prefix + _toml_key(key)
        lines += ["", f"[{name}]", *_toml_table(inner, prefix=f"{name}.")]
    return lines


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_string(key)


def _toml_string(text: str) -> str:
    # A TOML basic string is a JSON string, except that TOML also wants DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_value(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))  # repr round-trips, and inf and nan are TOML's words too
    if isinstance(value, str | os.PathLike):
        return _toml_string(os.fspath(value))
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item, name) for item in value) + "]"
    kind = type(value).__name__
    raise ValueError(f"setting {name} holds a {kind}; use strings, numbers, booleans and lists")

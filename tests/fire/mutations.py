"""How files and names are damaged."""

from __future__ import annotations

import json
import random
from typing import Any

HOSTILE = [
    "",
    "\x00",
    "\x1b[31mred",
    "a\nb",
    "x" * 100_000,
    "é猫\u202e",
    "\ud800",
    "../../etc/passwd",
    "$(touch pwned)",
    "coding:unicode_escape\\u000aimport os; os._exit(7)#",
    "'''\nimport os; os._exit(7)\n'''",
    '"""); import os; os._exit(7) #',
    "vim: set fileencoding=raw_unicode_escape :\\u000araise SystemExit(7)",
    "{0.__class__}",
    "%s%n",
    "\\",
    "\\N{BULLET}",
    "${HOME}",
    "--out=pwned",
    "nan",
    "Rotate",
]
NUMBERS: list[Any] = [
    0,
    -0.0,
    -1,
    1,
    2,
    0.5,
    1e-320,
    1e308,
    -1e308,
    10**30,
    10**400,
    2**63,
    float("nan"),
    float("inf"),
    True,
    None,
]


def anything(noise: random.Random, depth: int = 2) -> Any:
    """A value that JSON can say."""
    kind = noise.randrange(6 if depth else 4)
    if kind < 2:
        return noise.choice(NUMBERS)
    if kind < 4:
        return text(noise)
    if kind == 4:
        return [anything(noise, depth - 1) for _ in range(noise.randrange(4))]
    return {text(noise): anything(noise, depth - 1) for _ in range(noise.randrange(4))}


def text(noise: random.Random) -> str:
    if noise.random() < 0.6:
        return noise.choice(HOSTILE[:4] + HOSTILE[5:] if noise.random() < 0.95 else HOSTILE)
    return "".join(chr(noise.randrange(1, 0x3000)) for _ in range(noise.randrange(12)))


def damaged_json(content: Any, noise: random.Random) -> bytes:
    """Something like this content: other values, lost or new keys, torn or garbled text."""
    content = json.loads(json.dumps(content))
    for _ in range(noise.choice((0, 1, 1, 1, 2, 5))):
        content = replaced(content, noise)
    written = json.dumps(content, ensure_ascii=noise.random() < 0.5)
    raw = written.encode("utf-8", "surrogatepass")
    return damaged_bytes(raw, noise) if noise.random() < 0.3 else raw


def replaced(content: Any, noise: random.Random) -> Any:
    """With another value somewhere inside."""
    if noise.random() < 0.15 or not isinstance(content, dict | list) or not content:
        return anything(noise)
    if isinstance(content, list):
        where = noise.randrange(len(content))
        doing = noise.random()
        if doing < 0.1:
            return content[:where]
        if doing < 0.2:
            return content + content[where:]
        return [*content[:where], replaced(content[where], noise), *content[where + 1 :]]
    name = noise.choice(list(content))
    doing = noise.random()
    if doing < 0.1:
        return {key: value for key, value in content.items() if key != name}
    if doing < 0.2:
        return {**content, text(noise): anything(noise)}
    return {**content, name: replaced(content[name], noise)}


def damaged_bytes(raw: bytes, noise: random.Random) -> bytes:
    """Torn, doubled, with bits flipped, or with a piece of something else inside."""
    doing = noise.randrange(6)
    where = noise.randrange(len(raw) + 1)
    if doing == 0:
        return raw[:where]
    if doing == 1:
        return raw[where:]
    if doing == 2:
        return raw[:where] + raw[max(0, where - noise.randrange(100)) :]
    if doing == 3:
        return raw[:where] + noise.randbytes(noise.randrange(1, 50)) + raw[where:]
    if doing == 4:
        length = noise.randrange(1, 200)
        return raw[:where] + bytes(min(length, len(raw) - where)) + raw[where + length :]
    flipped = bytearray(raw)
    for _ in range(noise.choice((1, 1, 2, 8)) if raw else 0):
        flipped[noise.randrange(len(flipped))] ^= 1 << noise.randrange(8)
    return bytes(flipped)

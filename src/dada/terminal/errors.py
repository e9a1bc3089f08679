"""What the library says about its parameters, said about the flags of the command line.

A message of the library names a parameter in backticks, alone or with a value as one writes it in
Python: "`batch_size` should be positive", "pass `resume=True` to continue it". Here these become
"--batch-size should be positive" and "pass --resume to continue it".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer

from dada.safe_text import printable

# All that typer finds wrong in a line; it has no public name there.
UsageMistake: type[Exception] = typer.BadParameter.__mro__[1]
PARAMETER = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`]+))?`")
QUOTES = "\"'"
REWORDED = (
    (r" \(Possible options: (.*)\)$", r"; did you mean \1?"),
    (r"\. Did you mean (.*)\?$", r"; did you mean \1?"),
    (r"^Invalid value for '([^']*)': ", r"\1: "),
    (r"Input should be a valid (\w+).*", r"should be a valid \1"),
)


def in_flags(message: str, app: typer.Typer, arguments: Sequence[str]) -> str:
    """The message in words of the command that was typed, or of another; unknown names stay."""
    group = typer.main.get_command(app)
    commands = getattr(group, "commands", {})
    typed = next((commands[word] for word in arguments if word in commands), group)
    # Of the others only options: what is typed after another command has no name there.
    options = (
        parameter
        for command in commands.values()
        for parameter in command.params
        if parameter.param_type_name == "option"
    )
    known = {parameter.name: parameter for parameter in (*options, *typed.params)}

    def flag(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name not in known:
            return found.group()
        parameter = known[name]
        if parameter.param_type_name == "argument":
            return parameter.metavar or name.upper()
        if value == "False" and parameter.secondary_opts:
            return str(parameter.secondary_opts[0])
        option = str(parameter.opts[0])
        return option if value in (None, "True") else f"{option} {value.strip(QUOTES)}"

    return PARAMETER.sub(flag, message)


def in_words(error: ValueError | OSError) -> str:
    """What it says; of the system's own errors the file and the reason, without a number."""
    if isinstance(error, OSError) and error.filename and type(error).__str__ is OSError.__str__:
        return f"{printable(error.filename)}: {error.strerror}"
    return str(error)


def usage_in_words(mistake: Any) -> str:
    """An option, an argument or a command that typer did not understand, in one line."""
    words = mistake.format_message().rstrip(".")
    for theirs, ours in REWORDED:
        words = re.sub(theirs, ours, words)
    context = mistake.ctx
    command = f"dada {context.info_name}" if context and context.parent else "dada"
    return f"{words[:1].lower()}{words[1:]}; see {command} --help"

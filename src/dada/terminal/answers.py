"""What a command has to say when it has ended: words for people, or one JSON object for programs.

A command returns an `Answer`; `--json` and `--quiet` are dealt with here, once for all of them.
With `--json` whatever is printed meanwhile goes to standard error, so that standard output holds
the object and nothing else. With `--quiet` it goes nowhere; errors are said by `main`, later.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dada.terminal.streams import echo

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Of every command. A field is an option; `shares_options` gives all of them to a command."""

    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing but errors.", rich_help_panel="Output")
    ] = False
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object at the end; the rest goes to standard error.",
            rich_help_panel="Output",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was found, as plain values, and how to show it."""

    content: Mapping[str, Any]
    show: Callable[[Console], None]
    problem: str = ""  # what went wrong all the same: said as an error
    code: int = 0


def told(content: Mapping[str, Any], *lines: str) -> Answer:
    """An answer of a few lines."""

    def show(console: Console) -> None:
        for line in lines:
            echo(line)

    return Answer(content=content, show=show)


def deliver(command: str, options: OutputOptions, ask: Callable[[], Answer]) -> None:
    """Run a command, and pass on what it says in the way that was asked for."""
    with _streams(options):
        answer = ask()
        if not options.json:
            from dada.terminal.console import console

            answer.show(console())
    # Under torchrun only the first process speaks.
    if options.json and os.environ.get("RANK", "0") == "0":
        print(json.dumps({"command": command, **answer.content}, default=_plain, allow_nan=False))
    if answer.problem:
        echo(f"dada: {answer.problem}", error=True)
    if answer.code:
        raise typer.Exit(answer.code)


@contextmanager
def _streams(options: OutputOptions) -> Iterator[None]:
    if options.quiet:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    elif options.json:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield


def _plain(value: Any) -> Any:
    """What JSON has no form for."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)

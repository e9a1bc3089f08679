"""What all commands have in common: the application, and arguments that several of them take."""

from __future__ import annotations

from typing import Annotated

import typer

import dada
from dada.terminal import completion

app = typer.Typer(
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn an image augmentation policy for your data, look at it, and use it.",
)

PolicyName = Annotated[
    str,
    typer.Argument(
        metavar="POLICY",
        help="A policy file, a run directory, or a name.",
        autocompletion=completion.policies,
    ),
]
Data = Annotated[str | None, typer.Argument(metavar="DATA", help="A folder, a file or a name.")]
Force = Annotated[bool, typer.Option(help="Write over a file of that name.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"dada {dada.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command."""

"""The command: a table of what can be asked for, and no logic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import dada

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn an image augmentation policy for your data, look at it, and use it.",
)

PolicyName = Annotated[
    str, typer.Argument(metavar="POLICY", help="A policy file, a run directory, or a name.")
]
Seed = Annotated[int, typer.Option(help="Makes the run repeatable.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dada {dada.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")
    ] = False,
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command."""


@app.command(epilog="Example: dada show dada-cifar10 --image sheet.png")
def show(
    policy: PolicyName,
    image: Annotated[
        Path | None,
        typer.Option(
            help="A picture to show it on (writes NAME-augmented.png), "
            "or a new .png to write a sheet of --data to."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Images for the sheet; default digits.")] = None,
) -> None:
    """Print a policy in physical units; draw what it does."""
    from dada.show import print_policy, write_sheet

    loaded = dada.Policy.load(policy)
    print_policy(loaded, Console())
    if image is None and data is not None:
        image = Path("policy.png")
    if image is not None:
        typer.echo(f"wrote {write_sheet(loaded, image, data)}")


@app.command(epilog="Example: dada apply dada-cifar10 photos augmented --copies 4")
def apply(
    policy: PolicyName,
    source: Annotated[Path, typer.Argument(metavar="IN", help="A folder of images, or one.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    copies: Annotated[int, typer.Option(help="Augmented versions of every image.")] = 1,
    seed: Seed = 0,
) -> None:
    """Write augmented copies of images; the originals stay as they are."""
    from dada.folder import apply_to_folder

    outcome = apply_to_folder(dada.Policy.load(policy), source, target, copies=copies, seed=seed)
    for line in outcome.converted:
        typer.echo(f"converted {line}", err=True)
    for line in outcome.skipped:
        typer.echo(f"skipped {line}", err=True)
    summary = f"wrote {outcome.written} files from {outcome.images} images to {target}"
    typer.echo(f"{summary}, skipped {len(outcome.skipped)}" if outcome.skipped else summary)


@app.command(epilog="Example: dada search photos/ --out runs/photos")
def search(
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="A folder, a file or a name."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A network by name, or module:factory.")] = None,
    preset: Annotated[str, typer.Option(help="dada or paper.")] = "dada",
    estimator: Annotated[str | None, typer.Option(help="gumbel, relax, reinforce or rloo.")] = None,
    exclude: Annotated[str, typer.Option(help="Operations to leave out: Invert,Solarize")] = "",
    draws: Annotated[str | None, typer.Option(help="A draw for every image, or batch.")] = None,
    views: Annotated[int | None, typer.Option(help="Views of every image in a step.")] = None,
    magnitudes: Annotated[
        str | None, typer.Option(help="straight_through, pathwise, distribution or fixed.")
    ] = None,
    hypergradient: Annotated[str | None, typer.Option(help="finite_difference or forward.")] = None,
    fixed_validation: Annotated[
        bool, typer.Option(help="Always the same validation batch, as the authors did.")
    ] = False,
    val: Annotated[
        str | None, typer.Option(help="Validation data; default: half is split off.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Side to resize images to.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training half.")] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the network.")] = None,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option(help="Continue a run that was interrupted.")] = False,
) -> None:
    """Learn a policy for a data set (the built-in digits when none is named)."""
    from dada.progress import SearchProgress, print_result

    console = Console()
    progress = SearchProgress(console)
    try:
        result = dada.search(
            data,
            val,
            model,
            preset,
            seed=seed,
            out=out or Path("runs") / f"search-{Path(data or 'digits').name.replace(':', '-')}",
            resume=resume,
            device=device,
            image_size=image_size,
            on_start=progress.start,
            on_epoch=progress.epoch,
            estimator=estimator,
            exclude=tuple(filter(None, map(str.strip, exclude.split(",")))) or None,
            draws=draws,
            views=views,
            magnitudes=magnitudes,
            hypergradient=hypergradient,
            fixed_validation=fixed_validation or None,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
        )
    finally:
        progress.stop()
    print_result(result, console)


def main() -> None:
    """Errors a user can cause: one line, exit code 2; --debug gives the traceback."""
    # Before or after the name of the command: a person adds it where the line ends.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(arguments)
    except (ValueError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        print(f"dada: {error}", file=sys.stderr)
        sys.exit(2)

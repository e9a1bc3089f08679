"""The command: a table of what can be asked for, and no logic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import dada
from dada.renamed import new_flags
from dada.terminal.errors import in_flags
from dada.terminal.options import RunOptions, comma_separated, shares_options, split_names
from dada.terminal.streams import echo, encode_anything

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn an image augmentation policy for your data, look at it, and use it.",
)

PolicyName = Annotated[
    str, typer.Argument(metavar="POLICY", help="A policy file, a run directory, or a name.")
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


@app.command(epilog="Example: dada search photos/ --out runs/photos")
@shares_options
def search(
    options: RunOptions,
    data: Data = None,
    preset: Annotated[str, typer.Option(help="dada or paper.")] = "dada",
    estimator: Annotated[
        str | None, typer.Option(help="gumbel, gumbel-sampled, relax, reinforce or rloo.")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="paper, strength or wide; from paper it may change.")
    ] = None,
    exclude: Annotated[str, typer.Option(help="Operations to leave out: Invert,Solarize")] = "",
    draws: Annotated[str | None, typer.Option(help="A draw for every image, or batch.")] = None,
    views: Annotated[int | None, typer.Option(help="Views of every image in a step.")] = None,
    magnitudes: Annotated[
        str | None, typer.Option(help="straight_through, pathwise, distribution or fixed.")
    ] = None,
    hypergradient: Annotated[str | None, typer.Option(help="finite_difference or forward.")] = None,
    fixed_validation: Annotated[
        bool | None, typer.Option(help="Always the same validation batch, as the authors did.")
    ] = None,
    lookahead: Annotated[
        float | None,
        typer.Option(help="Seconds of looking ahead, roughly; default 80, GPU 95; 0: none."),
    ] = None,
    verify_budget: Annotated[
        float | None,
        typer.Option(help="Seconds of short trainings that check the policy; default 0, GPU 62."),
    ] = None,
    val_data: Annotated[
        str | None, typer.Option("--val", help="Validation data; default: half is split off.")
    ] = None,
) -> None:
    """Learn a policy for a data set (the built-in digits when none is named)."""
    from dada.terminal.results import print_result
    from dada.terminal.run import Run

    with Run("search", data, options) as run:
        result = dada.search(
            data,
            val_data,
            preset=preset,
            seed=options.seed,
            verify_budget=verify_budget,
            lookahead=lookahead,
            estimator=estimator,
            space=space,
            exclude=comma_separated(exclude),
            draws=draws,
            views=views,
            magnitudes=magnitudes,
            hypergradient=hypergradient,
            fixed_validation=fixed_validation,
            **run.arguments,
        )
    print_result(result, run.console)


@app.command(epilog="Example: dada train photos/ --policy runs/search-photos --model resnet50")
@shares_options
def train(
    options: RunOptions,
    data: Data = None,
    policy: Annotated[
        str, typer.Option(help="A policy file, a run directory, or a name.")
    ] = "none",
    optimizer: Annotated[str | None, typer.Option(help="sgd or adamw.")] = None,
    ema: Annotated[
        float | None, typer.Option(help="Score averaged weights; their decay, e.g. 0.999.")
    ] = None,
    compile: Annotated[
        bool | None, typer.Option("--compile", help="torch.compile: slow to start, then faster.")
    ] = None,
) -> None:
    """Train a network under a policy, and score it on images it has not seen."""
    from dada.terminal.results import print_trained
    from dada.terminal.run import Run

    with Run("train", data, options) as run:
        trained = dada.train(
            data,
            policy,
            seed=options.seed,
            optimizer=optimizer,
            ema=ema,
            compile=compile,
            **run.arguments,
        )
    print_trained(trained, run.console)


@app.command(epilog="Example: dada compare photos/ --policies runs/photos,uniform,none --seeds 5")
@shares_options
def compare(
    options: RunOptions,
    data: Data = None,
    policies: Annotated[
        str, typer.Option(help="Files, run directories or names, with commas between.")
    ] = "uniform,trivialaugment,cutout,none",
    seeds: Annotated[int, typer.Option(help="Trainings of every policy.")] = 3,
    metric: Annotated[
        str | None,
        typer.Option(help="accuracy, balanced_accuracy; mean_iou, ap50, ap, ... of other tasks."),
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(help="Trainings side by side; default: as many as fit.")
    ] = None,
) -> None:
    """Train with every policy and several seeds; say which is better, and by how much."""
    from dada.terminal.results import print_comparison
    from dada.terminal.run import Run

    with Run("compare", data, options) as run:
        comparison = dada.compare(
            data,
            split_names(policies),
            seeds=range(options.seed, options.seed + seeds),
            metric=metric,
            at_once=at_once,
            **run.arguments,
        )
    print_comparison(comparison, run.console, run.out)
    if comparison.failed:
        echo("dada: not all trainings ended; --resume tries those that failed again", error=True)
        raise typer.Exit(2)


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
    data: Annotated[
        str | None, typer.Option(help="Images for the sheet; default: the run's own, else digits.")
    ] = None,
) -> None:
    """Print a policy in physical units; draw what it does."""
    from dada.report.contact_sheet import write_sheet
    from dada.terminal.console import console
    from dada.terminal.policy_table import print_policy

    loaded = dada.Policy.load(policy)
    print_policy(loaded, console())
    if image is None and data is not None:
        image = Path("policy.png")
    if image is not None:
        echo(f"wrote {write_sheet(loaded, image, data, run=policy)}")


@app.command(epilog="Example: dada apply dada-cifar10 photos augmented --copies 4")
def apply(
    policy: PolicyName,
    source: Annotated[Path, typer.Argument(metavar="IN", help="A folder of images, or one.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    copies: Annotated[int, typer.Option(help="Augmented versions of every image.")] = 1,
    seed: Annotated[int, typer.Option(help="Makes the run repeatable.")] = 0,
) -> None:
    """Write augmented copies of images; the originals stay as they are."""
    from dada.exchange.folder import apply_to_folder

    outcome = apply_to_folder(dada.Policy.load(policy), source, target, copies=copies, seed=seed)
    for line in outcome.converted:
        echo(f"converted {line}", error=True)
    for line in outcome.skipped:
        echo(f"skipped {line}", error=True)
    summary = f"wrote {outcome.written} files from {outcome.images} images to {target}"
    echo(f"{summary}, skipped {len(outcome.skipped)}" if outcome.skipped else summary)


@app.command(epilog="Example: dada export dada-cifar10 --to torchvision --out my_policy.py")
def export(
    policy: PolicyName,
    to: Annotated[
        str, typer.Option(help="torchvision, timm, albumentations, kornia, dali or mmpretrain.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file; default policy_TARGET.py or .json.")
    ] = None,
    force: Force = False,
) -> None:
    """Write a policy as a file that runs in another library, without this package."""
    from dada.exchange.exports import export_file

    echo(f"wrote {export_file(dada.Policy.load(policy), to, out, force=force)}")


@app.command("import", epilog="Example: dada import imagenet --from torchvision")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSON file, or a name of theirs.")],
    source: Annotated[str, typer.Option("--from", help="torchvision, timm or albumentations.")],
    out: Annotated[Path, typer.Option(help="The policy file.")] = Path("policy.json"),
    exclude: Annotated[str, typer.Option(help="Operations of theirs to leave out: A,B")] = "",
    force: Force = False,
) -> None:
    """Read a policy that was written for another library."""
    from dada.exchange.imports import import_file

    names = comma_separated(exclude) or ()
    policy = import_file(file, source, out, exclude=names, force=force)
    for line in policy.provenance.get("approximations", ()):
        echo(f"approximated: {line}", error=True)
    echo(f"wrote {out}: {len(policy.subpolicies)} sub-policies, space {policy.space}")


@app.command(epilog="Example: dada report runs/photos")
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    comparison: Annotated[
        Path | None, typer.Option(help="The run directory of a dada compare of this policy.")
    ] = None,
) -> None:
    """Write report.html: a page about a run, whole in one file."""
    from dada.report import write_report

    echo(f"wrote {write_report(run, comparison)}")


@app.command(epilog="Example: dada doctor")
def doctor() -> None:
    """Show what this machine has, what is missing and how to install it."""
    from dada.terminal.console import console
    from dada.terminal.doctor import examine, print_findings, usable

    findings = examine()
    print_findings(findings, console())
    raise typer.Exit(0 if usable(findings) else 1)


def main() -> None:
    """Errors a user can cause: one line, exit code 2; --debug gives the traceback."""
    encode_anything()
    # Before or after the name of the command: a person adds it where the line ends.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    arguments = new_flags(arguments, lambda line: echo(f"dada: {line}", error=True))
    try:
        app(arguments)
    except MemoryError:
        if "--debug" in sys.argv:
            raise
        echo("dada: the machine's memory is full; use fewer or smaller images", error=True)
        sys.exit(2)
    except (ValueError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        echo(f"dada: {in_flags(str(error), app, arguments)}", error=True)
        sys.exit(2)

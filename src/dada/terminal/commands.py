"""The command: a table of what can be asked for, and no logic."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

import dada
from dada.renamed import new_flags
from dada.terminal import completion
from dada.terminal.answers import Answer, OutputOptions
from dada.terminal.app import Data, app
from dada.terminal.errors import UsageMistake, in_flags, in_words, usage_in_words
from dada.terminal.options import (
    LOOKAHEAD_DEFAULTS,
    VERIFY_DEFAULTS,
    RunOptions,
    comma_separated,
    shares_options,
    split_names,
)
from dada.terminal.streams import echo, encode_anything


@app.command(epilog="Example: dada search digits --out runs/digits")
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
    for_epochs: Annotated[
        int | None,
        typer.Option(help="Epochs of the training that the policy is for; default: dada train's."),
    ] = None,
    for_images: Annotated[
        int | None, typer.Option(help="Its images; default: all of the data.")
    ] = None,
    lookahead: Annotated[
        float | None,
        typer.Option(help=f"Seconds of looking ahead, roughly; {LOOKAHEAD_DEFAULTS}; 0: none."),
    ] = None,
    verify_budget: Annotated[
        float | None,
        typer.Option(help=f"Seconds of short trainings that check the policy; {VERIFY_DEFAULTS}."),
    ] = None,
    val_data: Annotated[
        str | None, typer.Option("--val", help="Validation data; default: half is split off.")
    ] = None,
) -> Answer:
    """Learn a policy for a data set (the built-in digits when none is named)."""
    from dada.terminal.results import print_result, result_content
    from dada.terminal.run import Run

    with Run("search", data, options) as run:
        result = dada.search(
            data,
            val_data,
            preset=preset,
            seed=options.seed,
            verify_budget=verify_budget,
            lookahead=lookahead,
            for_epochs=for_epochs,
            for_images=for_images,
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
    return Answer(
        content=result_content(result), show=lambda console: print_result(result, console)
    )


@app.command(epilog="Example: dada train digits --policy trivialaugment --epochs 10")
@shares_options
def train(
    options: RunOptions,
    data: Data = None,
    policy: Annotated[
        str,
        typer.Option(
            help="A policy file, a run directory, or a name.", autocompletion=completion.policies
        ),
    ] = "none",
    optimizer: Annotated[str | None, typer.Option(help="sgd or adamw.")] = None,
    ema: Annotated[
        float | None, typer.Option(help="Score averaged weights; their decay, e.g. 0.999.")
    ] = None,
    compile: Annotated[
        bool | None, typer.Option("--compile", help="torch.compile: slow to start, then faster.")
    ] = None,
) -> Answer:
    """Train a network under a policy, and score it on images it has not seen."""
    from dada.terminal.results import print_trained, trained_content
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
    return Answer(
        content=trained_content(trained), show=lambda console: print_trained(trained, console)
    )


@app.command(epilog="Example: dada compare digits --policies uniform,none --epochs 10")
@shares_options
def compare(
    options: RunOptions,
    data: Data = None,
    policies: Annotated[
        str,
        typer.Option(
            help="Files, run directories or names, with commas between.",
            autocompletion=completion.policies,
        ),
    ] = "uniform,trivialaugment,cutout,none",
    seeds: Annotated[int, typer.Option(help="Trainings of every policy.")] = 3,
    metric: Annotated[
        str | None,
        typer.Option(help="accuracy, balanced_accuracy; mean_iou, ap50, ap, ... of other tasks."),
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(help="Trainings side by side; default: as many as fit.")
    ] = None,
) -> Answer:
    """Train with every policy and several seeds; say which is better, and by how much."""
    from dada.terminal.results import comparison_content, print_comparison
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
    failed = bool(comparison.failed)
    return Answer(
        content=comparison_content(comparison),
        show=lambda console: print_comparison(comparison, console, run.out),
        problem="not all trainings ended; --resume tries those that failed again" if failed else "",
        code=2 if failed else 0,
    )


@app.command(epilog="Example: dada verify runs/photos --budget 60")
@shares_options
def verify(
    options: OutputOptions,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run of a finished search.")],
    budget: Annotated[
        float | None,
        typer.Option(
            help="Seconds of short trainings to add, roughly; default 60. Where these are too few "
            "to compare anything, it says how many are enough."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda; default: as then.")] = None,
) -> Answer:
    """Check the policy of a finished search by short trainings, or add to what was checked."""
    from dada.api.bars import Bars
    from dada.api.progress import SearchProgress
    from dada.terminal.console import console
    from dada.terminal.results import print_verified, result_content

    progress = SearchProgress(Bars(console()))
    with progress:
        result = dada.verify(
            run,
            budget,
            device=device,
            on_training=progress.training,
            on_note=progress.teller.note,
        )
    return Answer(
        content=result_content(result), show=lambda console: print_verified(result, console)
    )


# After those above, so that --help lists them in this order.
import dada.terminal.policy_commands  # noqa: E402


def main() -> None:
    """Errors a user can cause: one line, exit code 2; --debug gives the traceback."""
    encode_anything()
    # Images up to the size at which Pillow refuses are read, without a word about attacks.
    warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\) exceeds limit")
    # Before or after the name of the command: a person adds it where the line ends.
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    arguments = new_flags(arguments, lambda line: echo(f"dada: {line}", error=True))
    try:
        code = app(arguments or ["--help"], standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except UsageMistake as mistake:
        echo(f"dada: {usage_in_words(mistake)}", error=True)
        sys.exit(2)
    except MemoryError:
        if "--debug" in sys.argv:
            raise
        echo("dada: the machine's memory is full; use fewer or smaller images", error=True)
        sys.exit(2)
    except (ValueError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        echo(f"dada: {in_flags(in_words(error), app, arguments)}", error=True)
        sys.exit(2)

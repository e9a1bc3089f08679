"""The command: a table of what can be asked for, and no logic."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import dada
from dada.names import LISTS
from dada.renamed import new_flags
from dada.terminal import completion
from dada.terminal.answers import Answer, OutputOptions, told
from dada.terminal.errors import UsageMistake, in_flags, usage_in_words
from dada.terminal.options import (
    RunOptions,
    comma_separated,
    shares_options,
    split_names,
)
from dada.terminal.streams import echo, encode_anything

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
    metric: Annotated[str, typer.Option(help="accuracy or balanced_accuracy.")] = "accuracy",
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


@app.command(epilog="Example: dada show dada-cifar10 --image sheet.png")
@shares_options
def show(
    options: OutputOptions,
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
) -> Answer:
    """Print a policy in physical units; draw what it does."""
    from dada.report.contact_sheet import write_sheet
    from dada.terminal.policy_table import policy_content, print_policy

    loaded = dada.Policy.load(policy)
    if image is None and data is not None:
        image = Path("policy.png")
    sheet = None if image is None else write_sheet(loaded, image, data, run=policy)
    return Answer(
        content={**policy_content(loaded), "sheet": sheet},
        show=lambda console: print_policy(loaded, console, sheet=sheet),
    )


@app.command(epilog="Example: dada apply dada-cifar10 photos augmented --copies 4")
@shares_options
def apply(
    options: OutputOptions,
    policy: PolicyName,
    source: Annotated[Path, typer.Argument(metavar="IN", help="A folder of images, or one.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    copies: Annotated[int, typer.Option(help="Augmented versions of every image.")] = 1,
    seed: Annotated[int, typer.Option(help="Makes the run repeatable.")] = 0,
) -> Answer:
    """Write augmented copies of images; the originals stay as they are."""
    from dada.exchange.folder import apply_to_folder

    outcome = apply_to_folder(dada.Policy.load(policy), source, target, copies=copies, seed=seed)
    for line in outcome.converted:
        echo(f"converted {line}", error=True)
    for line in outcome.skipped:
        echo(f"skipped {line}", error=True)
    summary = f"wrote {outcome.written} files from {outcome.images} images to {target}"
    left_out = f", skipped {len(outcome.skipped)}" if outcome.skipped else ""
    return told({"out": target, **asdict(outcome)}, f"{summary}{left_out}")


@app.command(epilog="Example: dada export dada-cifar10 --to torchvision --out my_policy.py")
@shares_options
def export(
    options: OutputOptions,
    policy: PolicyName,
    to: Annotated[
        str,
        typer.Option(
            help="torchvision, timm, albumentations, kornia, dali or mmpretrain.",
            autocompletion=completion.export_targets,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file; default policy_TARGET.py or .json.")
    ] = None,
    force: Force = False,
) -> Answer:
    """Write a policy as a file that runs in another library, without this package."""
    from dada.exchange.exports import export_file

    file = export_file(dada.Policy.load(policy), to, out, force=force)
    return told({"to": to, "out": file}, f"wrote {file}")


@app.command("import", epilog="Example: dada import imagenet --from torchvision")
@shares_options
def import_(
    options: OutputOptions,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A JSON file, or a name of theirs.")],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="torchvision, timm or albumentations.",
            autocompletion=completion.import_sources,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The policy file.")] = Path("policy.json"),
    exclude: Annotated[str, typer.Option(help="Operations of theirs to leave out: A,B")] = "",
    force: Force = False,
) -> Answer:
    """Read a policy that was written for another library."""
    from dada.exchange.imports import import_file

    names = comma_separated(exclude) or ()
    policy = import_file(file, source, out, exclude=names, force=force)
    approximations = policy.provenance.get("approximations", ())
    for line in approximations:
        echo(f"approximated: {line}", error=True)
    count = len(policy.subpolicies)
    content = {"out": out, "subpolicies": count, "approximations": approximations}
    return told(content, f"wrote {out}: {count} sub-policies, space {policy.space}")


@app.command(epilog="Example: dada report runs/photos")
@shares_options
def report(
    options: OutputOptions,
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or a policy.")],
    comparison: Annotated[
        Path | None, typer.Option(help="The run directory of a dada compare of this policy.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Images for the page of a policy; default: digits.")
    ] = None,
) -> Answer:
    """Write report.html: a page about a run, whole in one file. Of a policy: NAME.html."""
    from dada.report import write_report

    page = write_report(run, comparison, data=data)
    return told({"report": page}, f"wrote {page}")


@app.command(epilog="Example: dada explore dada-cifar10 --data photos/")
def explore(
    policy: PolicyName,
    data: Annotated[
        str | None, typer.Option(help="Images to begin with; default: the run's own, else digits.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="The policy beside it; default: itself.",
            autocompletion=completion.policies,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="What Save writes; a number is added.")] = Path(
        "edited-policy.json"
    ),
    port: Annotated[int, typer.Option(help="Of 127.0.0.1; 0: any that is free.")] = 0,
    browser: Annotated[bool, typer.Option("--browser", help="Open it in the browser.")] = False,
) -> None:
    """A page on this machine to play with a policy: sliders, pictures, draws."""
    from dada.explorer import open_explorer

    with open_explorer(policy, data, against=against, out=out, port=port) as server:
        echo(f"open {server.address}")
        echo("Ctrl-C ends it")
        sys.stdout.flush()  # piped, too: nothing else follows
        if browser:
            webbrowser.open(server.address)
        server.serve_forever()


@app.command("list", epilog="Example: dada list policies")
@shares_options
def list_(
    options: OutputOptions,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="|".join(LISTS),
            help="What to list.",
            autocompletion=completion.lists,
        ),
    ],
) -> Answer:
    """List what there is to choose from."""
    from dada.terminal.listing import entries, print_entries

    found = entries(kind)
    return Answer(content={kind: found}, show=lambda console: print_entries(found, console))


@app.command(epilog="Example: dada doctor")
@shares_options
def doctor(options: OutputOptions) -> Answer:
    """Show what this machine has, what is missing and how to install it."""
    from dada.terminal.doctor import examine, print_findings, usable

    findings = examine()
    good = usable(findings)
    return Answer(
        content={"usable": good, "findings": findings},
        show=lambda console: print_findings(findings, console),
        code=0 if good else 1,
    )


def main() -> None:
    """Errors a user can cause: one line, exit code 2; --debug gives the traceback."""
    encode_anything()
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
        echo(f"dada: {in_flags(str(error), app, arguments)}", error=True)
        sys.exit(2)

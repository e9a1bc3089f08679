"""The commands about policies that are there already: a table, and no logic."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import dada
from dada.names import EXPORT_TARGETS, LISTS
from dada.terminal import completion
from dada.terminal.answers import Answer, OutputOptions, told
from dada.terminal.app import Force, PolicyName, app
from dada.terminal.options import comma_separated, shares_options
from dada.terminal.streams import echo


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
            help=f"{', '.join(EXPORT_TARGETS)}.",
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

"""The options that commands share, each written once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from dada.config import (
    LOOKAHEAD,
    LOOKAHEAD_FINE_TUNING,
    VERIFY,
    VERIFY_FINE_TUNING,
    LookaheadConfig,
    VerifyConfig,
)
from dada.safe_text import quoted
from dada.terminal import completion
from dada.terminal.answers import Answer, OutputOptions, deliver

PANEL = "Shared by search, train and compare"


def _defaults(
    usual: Mapping[str, LookaheadConfig | VerifyConfig],
    pretrained: Mapping[str, LookaheadConfig | VerifyConfig],
) -> str:
    """The seconds of a phase where nobody says, by device."""

    def by_device(settings: Mapping[str, LookaheadConfig | VerifyConfig]) -> str:
        return f"{settings['cpu'].seconds:g}, GPU {settings['cuda'].seconds:g}"

    return f"default {by_device(usual)} (pretrained {by_device(pretrained)})"


LOOKAHEAD_DEFAULTS = _defaults(LOOKAHEAD, LOOKAHEAD_FINE_TUNING)
VERIFY_DEFAULTS = _defaults(VERIFY, VERIFY_FINE_TUNING)


def comma_separated(text: str) -> tuple[str, ...] | None:
    """ "Invert, Solarize" -> the names in it; None when there is none."""
    return tuple(filter(None, map(str.strip, text.split(",")))) or None


def split_names(text: str) -> list[str]:
    """ "a,randaugment:2,0.5,b" -> the three names in it."""
    found = re.findall(r"\s*(randaugment:[^,]*,[^,]*|[^,]+)", text)
    return [name.strip() for name in found if name.strip()]


def _batch_size(text: str) -> int | str:
    if text != "auto" and not (text.isascii() and text.isdigit() and len(text) < 20):
        raise typer.BadParameter(f"{quoted(text)} is neither a number nor auto")
    return text if text == "auto" else int(text)


def _image_size(text: str) -> int | tuple[int, int]:
    sides = re.fullmatch(r"([0-9]{1,9})(?:x([0-9]{1,9}))?", text)
    if sides is None:
        raise typer.BadParameter(f"{quoted(text)} is neither a number nor HEIGHTxWIDTH, as 144x192")
    return int(sides[1]) if sides[2] is None else (int(sides[1]), int(sides[2]))


def _option(help: str, **details: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=PANEL, **details)


@dataclass(frozen=True, kw_only=True)
class RunOptions(OutputOptions):
    """Of search, train and compare."""

    task: Annotated[
        str | None,
        _option("classification, multilabel, segmentation or detection; default: by the data."),
    ] = None
    model: Annotated[
        str | None,
        _option("A network by name, or module:factory.", autocompletion=completion.models),
    ] = None
    pretrained: Annotated[
        bool, _option("Start from published weights of a timm: or torchvision: network.")
    ] = False
    weights: Annotated[
        Path | None, _option("Start from weights in a file, or from a run of dada train.")
    ] = None
    backbone: Annotated[
        Path | None, _option("For detection, segmentation: weights of a classifier to build on.")
    ] = None
    freeze: Annotated[
        str | None, _option("Of such a network: norm (default), backbone or none does not learn.")
    ] = None
    recipe: Annotated[
        str | None,
        _option(
            "The paper's settings by name, e.g. cifar10_wrn40_2; search finds a policy for them."
        ),
    ] = None
    image_size: Annotated[
        Any,
        _option(
            "Side to resize images to, or height and width.", parser=_image_size, metavar="N|HxW"
        ),
    ] = None
    base: Annotated[
        str | None,
        _option("Besides the policy: photo, photo-mild, flip, turn, turn-mild, cifar or none."),
    ] = None
    crop: Annotated[int | None, _option("Pixels of padding before a random crop.")] = None
    flip: Annotated[bool | None, _option("Mirror images at random, or not.")] = None
    turn: Annotated[
        bool | None, _option("Put images upside down and transpose square ones at random, or not.")
    ] = None
    scale: Annotated[
        float | None, _option("Random parts of at least this share of an image's area, 0..1.")
    ] = None
    epochs: Annotated[int | None, _option("Passes over the training images.")] = None
    batch_size: Annotated[
        Any,
        _option(
            "Images in a step; auto: what fits on the card.", parser=_batch_size, metavar="N|auto"
        ),
    ] = None
    lr: Annotated[float | None, _option("Learning rate of the network.")] = None
    precision: Annotated[str | None, _option("bf16, tf32 or fp32; default: by device.")] = None
    seed: Annotated[int, _option("Makes the run repeatable; of several, the first.")] = 0
    device: Annotated[str, _option("auto, cpu or cuda.")] = "auto"
    graph: Annotated[bool, _option("On a GPU, record the step as a CUDA graph.")] = True
    out: Annotated[Path | None, _option("Run directory; default runs/NAME.")] = None
    resume: Annotated[bool, _option("Continue a run that was interrupted.")] = False
    skip_bad: Annotated[bool, _option("Go on without image files that cannot be read.")] = False
    track: Annotated[str, _option("Also log to tensorboard, wandb, mlflow.")] = ""


def shares_options(command: Callable[..., Answer]) -> Callable[..., None]:
    """A command that takes `options: RunOptions` or `OutputOptions`, as one that has an option
    for each field of it, and whose answer is delivered as these say."""
    signature = inspect.signature(command, eval_str=True)
    kind: type[OutputOptions] = signature.parameters["options"].annotation
    types = get_type_hints(kind, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=types[field.name],
        )
        # Those that are its own come first, in the help too.
        for field in sorted(fields(kind), key=lambda field: field in fields(OutputOptions))
    ]
    own = [each for each in signature.parameters.values() if each.name != "options"]

    def with_options(**given: Any) -> None:
        options = kind(**{each.name: given.pop(each.name) for each in shared})
        deliver(command.__name__.rstrip("_"), options, lambda: command(**given, options=options))

    # What typer reads to make the options and the help.
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    parameters = [*own, *shared]
    with_options.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=None
    )
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options

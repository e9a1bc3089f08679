"""A policy read from another library's format. Files are read as data: nothing in them is run."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from dada.exchange.imports import albumentations, timm, torchvision
from dada.names import did_you_mean
from dada.policy import Policy
from dada.safe_text import one_line_errors, printable, quoted

# Each reader takes FILE (a path, or a name the library knows) and the operations to leave out.
READERS: dict[str, Callable[[str, Collection[str]], Policy]] = {
    "torchvision": torchvision.read,
    "timm": timm.read,
    "albumentations": albumentations.read,
}


@one_line_errors
def import_policy(file: str, source: str, *, exclude: Collection[str] = ()) -> Policy:
    """The policy of a file, or of a name, of another library.

    What a policy can express only approximately is listed in `provenance["approximations"]`; what
    it cannot express is refused by name. `exclude` names operations of the library to leave out.
    """
    if source not in READERS:
        raise ValueError(
            f"no import from {quoted(source)}; the sources are {', '.join(READERS)}"
            f"{did_you_mean(source, READERS)}"
        )
    try:
        return READERS[source](file, exclude)
    except (ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # A file that is JSON, but with something else where a number, a list or a name belongs.
        reason = printable(error) or type(error).__name__
        raise ValueError(f"{printable(file)}: not understood: {reason}") from None


@one_line_errors
def import_file(
    file: str,
    source: str,
    out: str | os.PathLike[str],
    *,
    exclude: Collection[str] = (),
    force: bool = False,
) -> Policy:
    """`import_policy`, written to `out`."""
    path = Path(out)
    if path.exists() and not force:
        raise ValueError(f"{path}: exists already; choose another `out` or pass `force=True`")
    policy = import_policy(file, source, exclude=exclude)
    path.parent.mkdir(parents=True, exist_ok=True)
    policy.save(path)
    return policy

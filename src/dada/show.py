"""A policy to look at: a table for the terminal and a contact sheet of what it does."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dada.policy import Policy, SubPolicy

BAR_WIDTH = 12
MOST_ROWS = 40  # of a table; a published policy may have 500 sub-policies


def bar(share: float, width: int = BAR_WIDTH) -> str:
    filled = round(share * width)
    return "█" * filled + "·" * (width - filled)


def print_policy(policy: Policy, console: Console) -> None:
    """Rich where a person looks; plain lines where a program reads."""
    if not console.is_terminal:
        console.print(policy.describe(), soft_wrap=True, markup=False, highlight=False)
        return
    if not policy.subpolicies:
        console.print("no augmentation")
        return
    table = Table(title=str(policy.provenance.get("name", "policy")), title_justify="left")
    table.add_column("drawn", justify="right")
    table.add_column("what is done to the image")
    table.add_column("probability", no_wrap=True)
    ranked = sorted(policy.subpolicies, key=lambda subpolicy: -subpolicy.weight)
    for subpolicy in ranked[:MOST_ROWS]:
        steps = "\n".join(policy.describe_op(step) for step in subpolicy.ops) or "nothing"
        chances = "\n".join(
            f"{bar(step.probability)} {step.probability:.2f}" for step in subpolicy.ops
        )
        table.add_row(f"{subpolicy.weight:.1%}", steps, chances)
    console.print(table)
    if len(ranked) > MOST_ROWS:
        console.print(f"... and {len(ranked) - MOST_ROWS} more sub-policies")
    shares = Table(title="how often each operation is done", title_justify="left", box=None)
    for name, share in sorted(policy.op_probabilities().items(), key=lambda item: -item[1]):
        shares.add_row(name, bar(share, 30), f"{share:.1%}")
    console.print(shares)


def contact_sheet(
    policy: Policy,
    images: list[Image.Image],
    *,
    rows: int = 10,
    columns: int = 8,
    cell: int = 96,
    seed: int = 0,
) -> Image.Image:
    """One row for each of the likeliest sub-policies: an original, then draws of it."""
    ranked = sorted(policy.subpolicies, key=lambda subpolicy: -subpolicy.weight)[:rows]
    label_width, gap = 330, 4
    row_height = cell + gap
    size = (label_width + (columns + 1) * (cell + gap), gap + max(1, len(ranked)) * row_height)
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for r, subpolicy in enumerate(ranked or [SubPolicy(1.0, ())]):
        only_this = Policy((SubPolicy(1.0, subpolicy.ops),), policy.space)
        transform = only_this.transform(seed=seed + r)
        image = images[r % len(images)]
        top = gap + r * row_height
        steps = [f"{policy.describe_op(s)}, p {s.probability:.2f}" for s in subpolicy.ops]
        pen.text((8, top + 8), "\n".join([f"{subpolicy.weight:.1%}", *steps]), fill="black")
        for c in range(columns + 1):
            shown = image if c == 0 else transform(image)
            left = label_width + c * (cell + gap) + (gap if c else 0)
            sheet.paste(_fit(shown, cell), (left, top))
    return sheet


def _fit(image: Image.Image, cell: int) -> Image.Image:
    scale = cell / max(image.size)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    smooth = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    return image.convert("RGB").resize(size, smooth)


def as_pil(images_BCHW: Tensor) -> list[Image.Image]:
    arrays = images_BCHW.permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(a[..., 0] if a.shape[-1] == 1 else a) for a in arrays]


def pictures_for(data: str | None, count: int) -> list[Image.Image]:
    """Images of a data set to show a policy on, spread over its classes."""
    from dada.data import load

    split = load(data)
    order = torch.argsort(split.train.labels_N, stable=True)
    chosen = order[torch.linspace(0, len(order) - 1, count).long()]
    return as_pil(split.train.batch(chosen)[0])


def _read(picture: Path) -> Image.Image:
    from dada.data.images import look_at, open_file, to_eight_bits, white_level

    opened = open_file(str(picture))
    try:
        return to_eight_bits(opened, white_level(look_at(opened).peak))
    except ValueError as error:
        raise ValueError(f"{picture}: {error}") from None


def write_sheet(policy: Policy, picture: Path, data: str | None) -> Path:
    """A contact sheet: of the picture itself when there is one, else of the data into it."""
    if picture.exists():
        if data is not None:
            raise ValueError(f"{picture}: exists already; give --image another name")
        images = [_read(picture)]
        target = Path(f"{picture.stem}-augmented.png")
        if target.exists():
            raise ValueError(f"{target}: exists already; move it away first")
    else:
        if picture.suffix.lower() != ".png":
            raise ValueError(f"{picture}: no such picture; a new one should be named .png")
        images, target = pictures_for(data, 10), picture
    target.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(policy, images).save(target)
    return target

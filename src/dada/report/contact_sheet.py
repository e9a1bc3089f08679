"""A contact sheet: a picture of what a policy does to images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from dada import tasks
from dada.data import load
from dada.data.images import image_info, open_file, to_eight_bits, white_level
from dada.policy import Policy, SubPolicy
from dada.report.gallery import in_words
from dada.report.samples import Sample, on_samples, read_samples
from dada.runlog.files import write

MOST_SHOWN = 2048  # pixels of a side that are looked at, of a picture that cells of 96 show


def contact_sheet(
    policy: Policy,
    images: Sequence[Image.Image | Sample],
    *,
    rows: int = 10,
    columns: int = 8,
    cell: int = 96,
    seed: int = 0,
) -> Image.Image:
    """One row for each of the likeliest sub-policies: an original, then draws of it."""
    ranked = sorted(policy.subpolicies, key=lambda subpolicy: -subpolicy.weight)[:rows]
    label_width, gap, apart = 330, 4, 12  # the original stands apart from what was made of it
    row_height = cell + gap
    size = (
        label_width + (columns + 1) * (cell + gap) + apart,
        gap + max(1, len(ranked)) * row_height,
    )
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for r, subpolicy in enumerate(ranked or [SubPolicy(1.0, ())]):
        only_this = Policy((SubPolicy(1.0, subpolicy.ops),), policy.space)
        augmented = on_samples(only_this, seed + r)
        given = images[r % len(images)]
        sample = given if isinstance(given, Sample) else Sample(image=given)
        top = gap + r * row_height
        _write_label(pen, (12, top + 4), policy, subpolicy, label_width - 30)
        for c in range(columns + 1):
            shown = (sample if c == 0 else augmented(sample)).picture
            left = label_width + c * (cell + gap) + (apart if c else 0)
            fitted = _fit(shown, cell)
            sheet.paste(fitted, (left + (cell - fitted.width) // 2, top))
    return sheet


def _write_label(
    pen: ImageDraw.ImageDraw,
    place: tuple[int, int],
    policy: Policy,
    subpolicy: SubPolicy,
    width: int,
) -> None:
    """How often it is drawn, then its operations, each wrapped to `width` pixels."""
    large, plain = ImageFont.load_default(17), ImageFont.load_default(14)
    x, y = place
    pen.text((x, y), f"{subpolicy.weight:.1%}", fill="#2457c5", font=large)
    y += 23
    for step in subpolicy.ops:
        words = f"{in_words(policy, step)}, {step.probability:.0%} of the time"
        for line in _wrapped(words, width, plain):
            pen.text((x, y), line, fill="#1d1f23", font=plain)
            y += 17
        y += 2


def _wrapped(
    words: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> list[str]:
    lines = [""]
    for word in words.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _fit(image: Image.Image, cell: int) -> Image.Image:
    scale = cell / max(image.size)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    smooth = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    return image.convert("RGB").resize(size, smooth)


def as_pil(images_BCHW: Tensor) -> list[Image.Image]:
    arrays = images_BCHW.permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(a[..., 0] if a.shape[-1] == 1 else a) for a in arrays]


def pictures_for(data: str | None, count: int) -> list[Sample]:
    """Images of a data set to show a policy on, spread over its classes."""
    split = load(data, in_memory=False)  # of files, only those that are shown are decoded
    order = torch.argsort(split.train.labels_N, stable=True)
    chosen = order[torch.linspace(0, len(order) - 1, count).long()]
    images, *targets = split.train.batch(chosen)
    moves = tasks.named(split.task).moves
    return [
        Sample(
            image=image,
            task=split.task,
            target=tuple(each[i].cpu() for each in targets) if moves else (),
            classes=split.classes,
        )
        for i, image in enumerate(as_pil(images))
    ]


def _read(picture: Path) -> Image.Image:
    opened = open_file(str(picture), draft=(MOST_SHOWN,) * 2, longest=MOST_SHOWN)
    try:
        return to_eight_bits(opened, white_level(image_info(opened).peak))
    except ValueError as error:
        raise ValueError(f"{picture}: {error}") from None


def write_sheet(
    policy: Policy, picture: Path, data: str | None, run: str | Path | None = None
) -> Path:
    """A contact sheet: of the picture itself when there is one, else of the data into it.

    Without `data`, of the images that the run directory kept, else of the digits.
    """
    if picture.exists():
        if data is not None:
            raise ValueError(f"{picture}: exists already; choose another name")
        images: list[Sample] = [Sample(image=_read(picture))]
        target = Path(f"{picture.stem}-augmented.png")
        if target.exists():
            raise ValueError(f"{target}: exists already; move it away first")
    else:
        if picture.suffix.lower() != ".png":
            raise ValueError(f"{picture}: no such picture; a new one should be named .png")
        kept = read_samples(Path(run)) if data is None and run is not None else []
        images = kept or pictures_for(data, 10)
        target = picture
    target.parent.mkdir(parents=True, exist_ok=True)
    sheet = contact_sheet(policy, images)
    write(target, lambda file: sheet.save(file, "PNG"))
    return target

"""Small plots as inline SVG: no script, no library, and colours that follow the page's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dada.report.markup import Html, fill, join

Point = tuple[float, float]


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) inside low..high."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number with few digits: 0.25, 5, 1200."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _dot(x: float, y: float) -> Html:
    return fill('<circle class="dot" cx="$x" cy="$y" r="3"/>', x=f"{x:.1f}", y=f"{y:.1f}")


def _curve(points: Sequence[Point]) -> Html:
    if len(points) == 1:
        return _dot(*points[0])
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return fill('<polyline class="curve" points="$path"/>', path=path)


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> Html:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    places = Html(" ".join(f'{name}="{place:.1f}"' for name, place in ends.items()))
    return fill('<line class="$css" $places/>', css=css, places=places)


def _text(x: float, y: float, text: str, anchor: str) -> Html:
    return fill(
        '<text x="$x" y="$y" text-anchor="$anchor">$text</text>',
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        text=text,
        anchor=anchor,
    )


def _svg(width: float, height: float, label: str, *content: object, css: str = "") -> Html:
    return fill(
        '<svg class="plot $css" viewBox="0 0 $width $height" role="img" aria-label="$label">'
        "$content</svg>",
        width=f"{width:g}",
        height=f"{height:g}",
        label=label,
        css=css,
        content=join(content),
    )


def percentage(value: float) -> str:
    return f"{100 * value:.3g}%"


def line_chart(
    points: Sequence[Point], *, label: str, said: Callable[[float], str] = short
) -> Html:
    """One curve over the epochs, with few ticks."""
    width, height, left, right, top, bottom = 260.0, 150.0, 34.0, 8.0, 8.0, 22.0
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    spare = (high - low) * 0.08 or max(abs(high), 1e-3) * 0.05
    low, high = low - spare, high + spare
    first, last = min(xs), max(xs)

    def place(x: float, y: float) -> Point:
        across = (x - first) / (last - first) if last > first else 0.5
        up = (y - low) / (high - low)
        right_of = left + across * (width - left - right)
        return right_of, height - bottom - up * (height - top - bottom)

    parts: list[object] = []
    for value in ticks(low, high):
        y = place(first, value)[1]
        parts.append(_line(left, y, width - right, y, "grid"))
        parts.append(_text(left - 6, y + 3.5, said(value), "end"))
    for tick in sorted({tick for tick in ticks(first, last, 5) if tick == int(tick)} | {first}):
        parts.append(_text(place(tick, low)[0], height - 5, f"{tick:.0f}", "middle"))
    parts.append(_curve([place(x, y) for x, y in points]))
    parts.append(_dot(*place(*points[-1])))
    spoken = f"{label}: from {said(ys[0])} in epoch {first:.0f} to {said(ys[-1])} in {last:.0f}"
    return _svg(width, height, spoken, *parts)


def sparkline(values: Sequence[float], top: float, level: float | None, label: str) -> Html:
    """A curve without axes; all of one table share the scale 0..top. `level` is a dashed line."""
    width, height = 120.0, 26.0

    def y(value: float) -> float:
        return height - 3 - min(1.0, value / top if top > 0 else 0.0) * (height - 6)

    step = (width - 6) / max(1, len(values) - 1)
    points = [(3 + i * step, y(value)) for i, value in enumerate(values)]
    parts: list[object] = []
    if level is not None:
        parts.append(_line(0, y(level), width, y(level), "level"))
    parts.append(_curve(points))
    return _svg(width, height, label, *parts, css="spark")


@dataclass(frozen=True, kw_only=True)
class IntervalRow:
    """A line of an interval plot: a mean, its interval and the single scores behind it."""

    name: str
    mean: float
    interval: tuple[float, float] | None = None
    scores: Sequence[float] = ()
    ours: bool = False  # set apart from the others


def interval_plot(
    rows: Sequence[IntervalRow], *, label: str, unit: str, zero: bool = False, names: bool = True
) -> Html:
    """A line for each row: the mean as a dot, its interval as a bar, single scores as rings.

    Made of boxes placed in percent, so that on a narrow screen only the scale shrinks and the
    words stay readable. `zero` marks where there is no difference.
    """
    values = [value for r in rows for value in (r.mean, *(r.interval or ()), *r.scores)]
    values += [0.0] if zero else []
    low, high = min(values), max(values)
    spare = (high - low) * 0.06 or 0.5
    low, high = low - spare, high + spare

    def at(value: float, start: float = low) -> str:
        return f"{100 * (value - start) / (high - low):.2f}%"

    marks = [(at(tick), zero and tick == 0, short(tick)) for tick in ticks(low, high, 6)]
    grid = join(
        fill('<i class="$css" style="left:$at"></i>', at=place, css="zero" if origin else "")
        for place, origin, _ in marks
    )

    def line(row: IntervalRow) -> Html:
        name = value = bar = Html("")
        if names:
            mean = points(row.mean) if zero else f"{row.mean:.1f}"
            name = fill('<span class="name">$name</span>', name=row.name)
            value = fill('<span class="num">$mean</span>', mean=mean)
        if row.interval:
            left, width = at(row.interval[0]), at(row.interval[1], start=row.interval[0])
            bar = fill('<b style="left:$at;width:$width"></b>', at=left, width=width)
        return fill(
            '<li class="$css">$name<span class="track">$grid$bar$rings'
            '<em style="left:$at"></em></span>$value</li>',
            css="ours" if row.ours else "other",
            name=name,
            grid=grid,
            bar=bar,
            rings=join(fill('<s style="left:$at"></s>', at=at(score)) for score in row.scores),
            at=at(row.mean),
            value=value,
        )

    scale = join(
        fill('<i style="left:$at">$text</i>', at=place, text=text) for place, _, text in marks
    )
    return fill(
        '<ul class="intervals $css" role="img" aria-label="$label">$lines'
        '<li class="scale">$blank<span class="track">$scale</span><span class="num">$unit</span>'
        "</li></ul>",
        css="" if names else "bare",
        label=label,
        lines=join(map(line, rows)),
        blank=Html("<span></span>") if names else "",
        scale=scale,
        unit=unit,
    )


def points(value: float) -> str:
    """A difference with its sign, and no minus before zero."""
    rounded = round(value, 1)
    return "0.0" if rounded == 0 else f"{rounded:+.1f}".replace("-", "−")


def bar(share: float, level: float | None = None, css: str = "") -> Html:
    """A share of 0..1 as a horizontal bar, with a tick at `level`."""
    mark = "" if level is None else fill('<i style="left:$at%"></i>', at=f"{100 * level:.1f}")
    return fill(
        '<span class="bar $css"><b style="width:$width%"></b>$mark</span>',
        css=css,
        width=f"{100 * min(1.0, max(0.0, share)):.1f}",
        mark=mark,
    )

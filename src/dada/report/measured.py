"""What the run measured: operations over time, curves, the comparison, the classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dada.policy import Policy, PolicyOp, names
from dada.policy.space import SPACES
from dada.report.gallery import in_words
from dada.report.markup import Html, fill, join, lead, section
from dada.report.plots import (
    IntervalRow,
    bar,
    interval_plot,
    line_chart,
    percentage,
    points,
    short,
    sparkline,
)
from dada.report.run_directory import RunDirectory, interval
from dada.report.signal import signal_word
from dada.runlog import POLICY
from dada.safe_json import mapping, number, sequence

MOST_CLASSES = 24  # bars of single classes; of more, the two ends are shown


def even_rate(run: RunDirectory) -> float | None:
    """The mean rate of the operations that the search allowed."""
    if run.policy is None:
        return None
    shares = run.policy.op_probabilities().items()
    rates = [rate for name, rate in shares if name not in run.excluded]
    return sum(rates) / len(rates) if rates else None


def first_rate(run: RunDirectory) -> float | None:
    """How often an operation is applied where a search starts: K x 0.5 / O, the same for all."""
    per_subpolicy = number(run.search_settings.get("ops_per_subpolicy"))
    space = SPACES.get(str(run.search_settings.get("space")))
    if per_subpolicy is None or space is None:
        return None
    allowed = [op for op in space.ops if op.name not in run.excluded]
    return 0.5 * per_subpolicy / len(allowed) if allowed else None


def operations(run: RunDirectory) -> Html | None:
    """A line for each operation: how often it is applied, over time too, and how strongly."""
    policy = run.policy
    if policy is None or not policy.subpolicies:
        return None
    shares = sorted(policy.op_probabilities().items(), key=lambda item: -item[1])
    history = {name: _rates(run, name) for name, _ in shares}
    even, first = even_rate(run), first_rate(run)
    widest = shares[0][1] or 1.0
    top = max([widest, first or 0.0, *(rate for rates in history.values() for rate in rates)])
    over_time = any(history.values())
    rows = join(
        fill(
            '<tr><th scope="row">$name</th><td class="wide">$bar</td><td class="num">$share</td>'
            '$time<td class="strength">$strength</td></tr>',
            name=name,
            bar=bar(share / widest, None if even is None else even / widest),
            share=f"{share:.1%}",
            time=_over_time(name, history[name], top, first) if over_time else Html(""),
            strength=_strength(policy, name),
        )
        for name, share in shares
    )
    words = "Of all images, the share that each operation is applied to."
    if even is not None:
        words += f" The tick marks their mean: {even:.1%}."
    if over_time:
        began = "" if first is None else f", from {first:.1%} each"
        words += f" The small curves run over the epochs of the search{began}."
    words += _lookahead_words(policy)
    return section(
        "operations",
        "Operations",
        lead(words),
        fill(
            '<table class="operations"><thead><tr><th>operation</th><th class="wide"></th>'
            '<th class="num">images</th>$time<th class="strength">strength, over its '
            "sub-policies</th></tr></thead><tbody>$rows</tbody></table>",
            time=Html("<th>over time</th>") if over_time else Html(""),
            rows=rows,
        ),
    )


def _lookahead_words(policy: Policy) -> str:
    """How looking ahead decided, unless verification then chose another policy than it made."""
    provenance = policy.provenance
    chosen = mapping(provenance.get("verification")).get("chosen", "searched")
    if chosen != "searched" or signal_word(policy) == "none":
        return ""
    lookahead, words = mapping(provenance.get("lookahead")), ""
    if runs := number(lookahead.get("runs")):
        words += f" Looking ahead {runs:.0f} times then decided how likely each is."
        if lookahead.get("features"):
            words += " It read the features of the pretrained network."
        if small := mapping(lookahead.get("stand_in")):
            size = " x ".join(map(str, small.get("image_size") or ["?"]))
            words += f" It did so with the network {small.get('model')} and images of {size}."
    if more := number(lookahead.get("policy_runs")):
        words += f" {more:.0f} times more chose between whole policies: {lookahead.get('shape')}."
    return words


def _rates(run: RunDirectory, op: str) -> list[float]:
    rates = [number(mapping(line.get("op_rate")).get(op)) for line in run.log]
    return [rate for rate in rates if rate is not None]


def _over_time(name: str, rates: list[float], top: float, level: float | None) -> Html:
    if not rates:
        return Html("<td></td>")
    words = f"{name}: {rates[0]:.1%} in the first epoch, {rates[-1]:.1%} in the last"
    return fill("<td>$spark</td>", spark=sparkline(rates, top, level, words))


def _strength(policy: Policy, name: str) -> str:
    """The values the operation takes anywhere in the policy, in its own unit."""
    steps = [s for sub in policy.subpolicies for s in sub.ops if s.op == name and s.probability > 0]
    op = SPACES[policy.space].op(name)
    if not steps or not op.has_strength:
        return "–"
    low = min(step.magnitude_range[0] for step in steps)
    high = max(step.magnitude_range[1] for step in steps)
    widest = PolicyOp(name, 1.0, low if low == high else (low, high))
    return in_words(policy, widest).removeprefix(name).strip()


CURVES = (
    ("loss", "Training loss", "of augmented images", short),
    ("val_accuracy", "Validation accuracy", "of images left as they are", percentage),
    ("entropy", "Policy entropy", "in nats; lower is more decided", short),
    ("change", "Policy change", "since the epoch before, 0 to 1", short),
)


def curves(run: RunDirectory) -> Html | None:
    """Loss, accuracy and entropy over the epochs."""
    charts = []
    for key, title, words, said in CURVES:
        found = [(number(line.get("epoch")), number(line.get(key))) for line in run.log]
        curve = [(x, y) for x, y in found if x is not None and y is not None]
        if curve:
            charts.append(
                fill(
                    "<figure><figcaption><strong>$title</strong><output>$last</output>"
                    "<span>$words</span></figcaption>$chart</figure>",
                    title=title,
                    last=said(curve[-1][1]),
                    words=words,
                    chart=line_chart(curve, label=title, said=said),
                )
            )
    if not charts:
        return None
    return section(
        "curves",
        "The search",
        lead("Epoch by epoch, from left to right; the number is the last epoch’s."),
        fill('<div class="charts">$charts</div>', charts=join(charts)),
    )


# --- the comparison -----------------------------------------------------------------------------


def contenders(run: RunDirectory) -> list[Mapping[str, Any]]:
    """The policies that were compared, those that have a mean."""
    listed = [mapping(entry) for entry in sequence(run.comparison.get("policies"))]
    return [e for e in listed if number(e.get("mean")) is not None]


def own_name(run: RunDirectory) -> str | None:
    """Under which name this run's policy was compared; else the one policy that is not free."""
    compared = [str(entry.get("name")) for entry in contenders(run)]
    title = str(run.policy.provenance.get("name")) if run.policy else None
    here = run.path.resolve()
    for name in compared:
        if Path(name).resolve() in (here, here / POLICY) or name in (title, run.path.name):
            return name
    free = {known.partition(":")[0] for known in names()} | {"autoaugment"}
    learned = [name for name in compared if name.partition(":")[0] not in free]
    return learned[0] if len(learned) == 1 else None


def _interval_row(entry: Mapping[str, Any], ours: str | None) -> IntervalRow:
    mean, ends = number(entry.get("mean")), interval(entry.get("interval"))
    assert mean is not None
    if ends is not None:  # of few seeds, it may pass what a percentage can be
        ends = max(ends[0], min(0.0, mean)), min(ends[1], max(100.0, mean))
    return IntervalRow(
        name=str(entry.get("name")),
        mean=mean,
        interval=ends,
        scores=[score for s in sequence(entry.get("scores")) if (score := number(s)) is not None],
        ours=entry.get("name") == ours,
    )


def comparison(run: RunDirectory) -> Html | None:
    """Every policy's accuracy with its interval, and the paired differences."""
    entries = contenders(run)
    if not entries:
        return None
    ours = own_name(run)
    rows = sorted((_interval_row(entry, ours) for entry in entries), key=lambda row: -row.mean)
    metric = str(run.comparison.get("metric") or "accuracy")
    facts = [f"Test {metric} in percent"]
    facts += [f"model {run.comparison['model']}"] if run.comparison.get("model") else []
    facts += [f"data {run.comparison['data']}"] if run.comparison.get("data") else []
    content: list[object] = []
    if run.comparison.get("verdict"):
        content.append(lead(run.comparison["verdict"]))
    content.append(_plot(rows, ", ".join(facts) + ". Rings are single trainings.", unit="%"))
    differences = [mapping(entry) for entry in sequence(run.comparison.get("differences"))]
    gaps = [
        IntervalRow(
            name=f"{e.get('policy')} − {e.get('against')}",
            mean=mean,
            interval=interval(e.get("interval")),
            ours=e.get("policy") == ours,
        )
        for e in differences
        if (mean := number(e.get("mean"))) is not None
    ]
    if gaps:
        words = "Differences, seed by seed. Where a bar covers zero, none was seen."
        content.append(_plot(gaps, words, unit="points", zero=True))
    return section("comparison", "Against the alternatives", *content)


def _plot(rows: list[IntervalRow], words: str, *, unit: str, zero: bool = False) -> Html:
    plot = interval_plot(rows, label=words, unit=unit, zero=zero)
    return fill(
        '<figure class="panel"><figcaption>$words</figcaption>$plot</figure>',
        words=words,
        plot=plot,
    )


def classes(run: RunDirectory) -> Html | None:
    """How much each class gains over a reference: uniform, else none, else the first other."""
    errors = {
        str(entry.get("name")): [number(e) for e in sequence(entry.get("class_error"))]
        for entry in contenders(run)
    }
    ours = own_name(run)
    others = [name for name, listed in errors.items() if name != ours and listed]
    if ours is None or not errors[ours] or not others:
        return None
    against = next((name for name in ("uniform", "none") if name in others), others[0])
    labels = [str(name) for name in sequence(run.comparison.get("classes"))]
    gains = [
        (labels[i] if i < len(labels) else f"class {i}", theirs - own)
        for i, (own, theirs) in enumerate(zip(errors[ours], errors[against], strict=False))
        if own is not None and theirs is not None
    ]
    if not gains:
        return None
    gains.sort(key=lambda gain: -gain[1])
    widest = max(abs(gain) for _, gain in gains) or 1.0
    shown, hidden = gains, []
    if len(gains) > MOST_CLASSES:
        ends = MOST_CLASSES // 2
        shown, hidden = gains[:ends] + gains[-ends:], gains[ends:-ends]
    words = f"Points of accuracy that each class gains or loses against “{against}”."
    content: list[object] = [lead(words), _gains(shown, widest)]
    if hidden:
        summary = f"The {len(hidden)} classes between"
        content.append(
            fill(
                "<details><summary>$summary</summary>$bars</details>",
                summary=summary,
                bars=_gains(hidden, widest),
            )
        )
    return section("classes", "Class by class", *content)


def _gains(gains: list[tuple[str, float]], widest: float) -> Html:
    rows = join(
        fill(
            '<li class="$side"><span class="class">$name</span><span class="swing">'
            '<b style="width:$width%"></b></span><span class="num">$gain</span></li>',
            side="gain" if gain >= 0 else "loss",
            name=name,
            width=f"{50 * abs(gain) / widest:.1f}",
            gain=points(gain),
        )
        for name, gain in gains
    )
    return fill('<ul class="gains">$rows</ul>', rows=rows)

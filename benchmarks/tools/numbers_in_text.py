"""Numbers in the text of a page, from the results; `tables.py` writes them.

    better by <!-- number: gain: cifar10: uniform -->0.61<!-- /number --> points

After `number:` comes one of NUMBERS, then what it is asked for.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from typing import Any

import torch
from found_policies import found_policies
from measure import result_of, welch
from paper_tables import errors_of, found
from photo_tables import (
    choices_of_base,
    gain_of_base,
    interval_over,
    layer_decay_gain,
    least_gain_over,
    loss_under_base,
    repeated_trainings,
    seconds_of_searches,
    settings_between,
    settings_gain,
)
from study_tables import gain_on_a_cpu

from dada import models
from dada.config import VERIFY, TrainConfig
from dada.data import load, split_off_validation
from dada.trials.cost import forward_work, training_seconds
from dada.trials.short import shorten

NUMBER = re.compile(r"<!-- number: (.*?) -->(.*?)<!-- /number -->", re.DOTALL)


def _row(rows: list[dict[str, Any]], key: str, name: str) -> dict[str, Any]:
    (found,) = (row for row in rows if row[key] == name)
    return found


def judged(data: str, policy: str) -> dict[str, Any]:
    return _row(result_of(f"judge-{data}")["table"], "policy", policy)


def _fidelity(data: str, signal: str, key: str = "with_truth") -> str:
    rows = result_of(f"reward-fidelity-{data}")["correlations"]
    return f"{_row(rows, 'signal', signal)[key]:.2f}"


def _interval(data: str, policy: str) -> str:
    row = judged(data, policy)
    return f"{row['from']:.2f} to {row['to']:.2f}"


def _task_gain(data: str, policy: str) -> str:
    row = _row(result_of(f"tasks-{data}")["table"], "policy", policy)
    return f"{row['dada_minus']:+.2f} ({row['from']:+.2f} to {row['to']:+.2f})"


def _trainings_on_a_cpu(budget: str, images: str, channels: str, side: str) -> str:
    """Of a verification of so many images, half of which judge, by the counting of today."""
    shape = int(channels), int(side), int(side)
    pixels_NCHW = torch.zeros(int(images), *shape, dtype=torch.uint8)
    halves = split_off_validation(load((pixels_NCHW, torch.arange(int(images)) % 10)), 0.5, 0)
    split, config = shorten(halves, TrainConfig(), VERIFY["cpu"].training, seed=0)
    work = forward_work(models.build("small", 10, shape[0], shape[1:], seed=0), shape)
    return str(int(float(budget) / training_seconds(split, config, work, "cpu")))


def _claims() -> str:
    found = result_of("null-check-digits")
    return f"{found['claims'] or 'none'} of {len(found['searches'])}"


def _no_signal() -> str:
    searches = result_of("null-check-digits")["searches"].values()
    return str(sum(each["signal"] == "none" for each in searches))


def _planted(counted: str) -> str:
    found = result_of("planted-check")
    return f"{found[counted]} of {len(found['rows'])}"


def _words(study: str, word: str) -> str:
    found = result_of(f"words-{study}")
    return f"{found['words'].get(word, 0)} of {len(found['searches'])}"


def _searches_agree(data: str) -> str:
    return f"{result_of(f'agreement-{data}')['agreement']['mean']:.2f}"


def _off_published() -> str:
    """The largest distance of an error from the published one, in points."""
    rows = result_of("cifar10")["trainings"].values()
    return f"{max(abs(row['error'] - row['published']) for row in rows):.1f}"


def _full_size_gain(policy: str) -> str:
    """Points of test error less than with a free policy, after the paper's whole training."""
    recipe = "cifar10_wrn40_2"
    less, low, high = welch(errors_of(recipe, policy), errors_of(recipe, "dada"))
    return f"{less:+.2f} ({low:+.2f} to {high:+.2f})"


def _full_size_error(policy: str) -> str:
    return f"{statistics.mean(errors_of('cifar10_wrn40_2', policy)):.2f}"


def _full_size_loss(policy: str) -> str:
    """On the augmented training images, in the last epoch of the paper's whole training."""
    rows = found()["trainings"].values()
    mine = [r for r in rows if (r["recipe"], r["arm"]) == ("cifar10_wrn40_2", policy)]
    return f"{statistics.mean(row['training_loss'] for row in mine):.2f}"


def _found_by(name: str) -> str:
    """The version of this package whose search found a policy that ships."""
    provenance = found_policies(result_of("paper"))[name]["provenance"]
    return str(provenance["versions"]["dada"])


def _error_of_cost(precision: str) -> str:
    rows = result_of("hypergradient")["rows"]
    here = [row for row in rows if row["method"] == "finite_difference"]
    return f"{100 * _row(here, 'precision', precision)['error_of_cost']:.2g}%"


def _times_as_fast(operation: str) -> str:
    """As Pillow's own call."""
    rows = result_of("ops-profile")["operations"]
    return f"{_row(rows, 'operation', operation)['pillow_over_dada']:.2g}"


def _gain_of(idea: str) -> str:
    """As shipped, over the speed with this idea taken back."""
    rows = result_of("ops-profile")["attempts"]
    speed = {row["whole policy"]: row["images_per_second"] for row in rows}
    (taken_back,) = (speed[name] for name in speed if name.startswith(idea))
    return f"{speed['as shipped'] / taken_back:.1f}"


def _start(name: str, column: str = "seconds") -> str:
    return f"{_row(result_of('starts')['rows'], 'start', name)[column]:.2g}"


def _seconds(case: str, key: str = "seconds_to_policy") -> str:
    seconds = result_of("search")["cases"][case][key]
    return f"{seconds:.0f}" if seconds >= 20 else f"{seconds:.1f}"


def _several(at_once: str) -> str:
    """Images per second of so many trainings on one card, over those of one."""
    rows = result_of("train")["several_at_once"]
    speed = {str(row["at_once"]): row["images_per_second"] for row in rows}
    return f"{speed[at_once] / speed['1']:.1f}"


def _waiting(way: str, busy: str) -> str:
    """Times as long as torch alone takes on an idle machine, a step of `small`."""
    case = "a step of `small`, 64 images of 32"
    ms = {state: cases[case] for state, cases in result_of("waiting")["ms"].items()}
    usual = statistics.median(ms["0 busy"]["as torch does"])
    return f"{statistics.median(ms[f'{busy} busy'][way]) / usual:.1f}"


NUMBERS: dict[str, Callable[..., str]] = {
    "gain": lambda data, policy: f"{judged(data, policy)['dada_minus']:.2f}",
    "interval": _interval,
    "fidelity": _fidelity,
    "task gain": _task_gain,
    "word": lambda data, word: str(result_of(f"judge-{data}")["signals"].get(word, 0)),
    "trainings on a CPU": _trainings_on_a_cpu,
    "claims": _claims,
    "no signal": _no_signal,
    "planted": _planted,
    "words": _words,
    "layer decay": layer_decay_gain,
    "settings": settings_gain,
    "settings between": settings_between,
    "base gain": gain_of_base,
    "base chosen": choices_of_base,
    "base loss": loss_under_base,
    "searches agree": _searches_agree,
    "fine-tuning seconds": seconds_of_searches,
    "fine-tuning least gain": least_gain_over,
    "fine-tuning interval": interval_over,
    "fine-tuning repeated": repeated_trainings,
    "gain on a CPU": gain_on_a_cpu,
    "off published": _off_published,
    "full-size gain": _full_size_gain,
    "full-size error": _full_size_error,
    "full-size loss": _full_size_loss,
    "found by": _found_by,
    "full-size n": lambda policy: str(len(errors_of("cifar10_wrn40_2", policy))),
    "error of a cost": _error_of_cost,
    "times as fast": _times_as_fast,
    "waiting": _waiting,
    "start": _start,
    "beyond torch": lambda name: _start(name, "cpu_beyond_torch"),
    "spread": lambda: f"{result_of('ranks-cpu')['times']:.1f}",
    "gain of": _gain_of,
    "seconds": _seconds,
    "attempt": lambda name: f"{result_of('train')['attempts_wrn28_10'][name]:.1f}",
    "at once": _several,
}


def number(name: str) -> str:
    kind, *asked = name.split(": ")
    if kind not in NUMBERS:
        raise ValueError(f"number: {name}: there are {', '.join(NUMBERS)}")
    return NUMBERS[kind](*asked)


def with_numbers(text: str) -> str:
    return NUMBER.sub(
        lambda found: f"<!-- number: {found[1]} -->{number(found[1])}<!-- /number -->", text
    )

"""The tables of docs/estimators.md, from the results; `tables.py` writes them into the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from measure import RESULTS, markdown, result_of

BIAS = ("bias of alpha", "bias of beta", "cosines")


def _bias(row: dict[str, Any]) -> tuple[str, str, str]:
    parts = row["alpha"], row["beta"]
    alpha, beta = (
        f"{part['relative_bias']:.1%} ± {part['relative_standard_error']:.1%}" for part in parts
    )
    return alpha, beta, ", ".join(f"{part['cosine']:.3f}" for part in parts)


def _spread(part: dict[str, float]) -> str:
    return f"{part['mean']:.3g} ({part['min']:.3g} .. {part['max']:.3g})"


def _milliseconds(time: dict[str, float]) -> str:
    return f"{1e3 * time['median']:.2g} ({1e3 * time['low']:.2g} .. {1e3 * time['high']:.2g})"


def machine_line() -> str:
    machine = result_of("estimators")["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['threads_used']} thread used"
    return f"{where}; Python {machine['python']}, torch {machine['torch']}.\n"


def bias_table() -> str:
    bias = result_of("estimators")["bias"]
    head = f"n = {bias['n_gradients']} gradients of {bias['draws_per_gradient']} draws; a setting "
    head += f"passes when no coordinate's |z| exceeds {bias['critical_z']:.2f}.\n\n"
    rows = (
        (row["setting"], "yes" if row["passes"] else "no", f"{row['largest_z']:.1f}", *_bias(row))
        for row in bias["rows"]
    )
    return head + markdown(("estimator", "passes", "largest z", *BIAS), rows)


def strength_table() -> str:
    """Bias by how strong the operations are."""
    rows = (
        ("{} to {}".format(*part["magnitudes"]), row["setting"], *_bias(row))
        for part in result_of("estimators")["bias_by_strength"]
        for row in part["rows"]
    )
    return markdown(("magnitudes", "estimator", *BIAS), rows)


def shortcuts_table() -> str:
    """What a shared virtual step and BatchNorm add in bias."""
    result = result_of("estimators")
    rows = (
        (name, row["batch"], row["n_gradients"], *_bias(row))
        for name in ("shared_step", "batch_norm")
        for row in result[name]
    )
    return markdown(("what", "batch", "n", *BIAS), rows)


def variance_tables() -> str:
    result, text = result_of("estimators"), ""
    for part in (result[name] for name in result if name.startswith("variance")):
        text += f"Network after {part['training_steps_of_the_network']} steps; "
        text += f"n = {part['n_networks']} networks, {part['n_gradients']} gradients each.\n\n"
        rows = ((r["setting"], _spread(r["alpha"]), _spread(r["beta"])) for r in part["rows"])
        text += markdown(("estimator", "alpha", "beta"), rows)
        ratios = (f"{ratio['alpha']:.0f}" for ratio in part["per_batch_over_per_image"])
        text += "\nPer-batch over per-image variance of alpha, for each network: "
        text += ", ".join(ratios) + ".\n\n"
    return text


def cost_table() -> str:
    columns = ("hypergradient", "dtype", "relative error", "ms (quartiles)")
    rows = (
        (
            row["hypergradient"],
            row["dtype"].removeprefix("torch."),
            f"{row['relative_error']:.1e}",
            _milliseconds(row["seconds"]),
        )
        for row in result_of("estimators")["hypergradients"]
    )
    return markdown(columns, rows)


PARTS = {"subpolicy_logits_N": "alpha", "apply_prob_NK": "beta", "magnitude_NK": "m"}


def pixel_precision_table() -> str:
    if not (RESULTS / "pixel-precision.json").exists():
        return "Not measured on a card yet.\n"
    result = result_of("pixel-precision")
    columns = ("estimator", "precision", "gradient of", "error", "cosine", "of the mean", "cosine")
    rows = (
        (
            row["estimator"],
            row["precision"],
            PARTS[row["gradient"]],
            f"{row['error']:.2g}",
            f"{row['cosine']:.3f}",
            f"{row['error_of_mean']:.2g}",
            f"{row['cosine_of_mean']:.3f}",
        )
        for row in result["rows"]
    )
    where, steps = result["machine"].get("gpu", "a CPU"), result["settings"]["steps"]
    return f"{where}, {steps} steps.\n\n" + markdown(columns, rows)


def time_table() -> str:
    rows = result_of("estimators")["time"]
    return markdown(
        ("estimator", "ms (quartiles)"),
        ((row["estimator"], _milliseconds(row["seconds"])) for row in rows),
    )


ESTIMATORS: dict[str, Callable[[], str]] = {
    "machine": machine_line,
    "bias table": bias_table,
    "strength table": strength_table,
    "shortcuts table": shortcuts_table,
    "variance tables": variance_tables,
    "cost table": cost_table,
    "pixel precision table": pixel_precision_table,
    "time table": time_table,
}

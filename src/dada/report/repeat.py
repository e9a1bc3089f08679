"""Commands and code to copy: to repeat or resume the search, and to use the policy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dada.config import BASES, NAMED_BASES, PRESETS, SEARCH_FINE_TUNING, Base, SearchConfig
from dada.data.sources import EMBEDDED
from dada.models import BUILDERS
from dada.names import EXPORT_TARGETS
from dada.recipes import RECIPES
from dada.report.markup import Html, code_block, fill, join, lead, section
from dada.report.run_directory import RunDirectory
from dada.safe_json import mapping
from dada.safe_text import comment_text, shell_word

FLAGS = (
    "estimator",
    "space",
    "exclude",
    "draws",
    "views",
    "magnitudes",
    "hypergradient",
    "fixed_validation",
    "lookahead",
    "for_epochs",
    "for_images",
    "epochs",
    "batch_size",
    "lr",
)
"""Settings of a search that `dada search` takes as options; the others are Python's."""

ASKED = {
    "task": "--task",
    "recipe": "--recipe",
    "val_source": "--val",
    "image_size": "--image-size",
    "verify_budget": "--verify-budget",
    "pretrained": "--pretrained",
    "weights": "--weights",
    "freeze": "--freeze",
}
"""What else a search was asked, as `config.toml` names it, and the option for it."""


def data_argument(config: Mapping[str, Any]) -> str | None:
    """What the user passed as data; where the run only knows its name, a place to fill in."""
    if config.get("source"):
        return shell_word(config["source"])
    name = config.get("data")
    if name is None or name in EMBEDDED:
        return name
    return shell_word(f"PATH/TO/{name}")


def changed_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a search that are not its preset's, or its recipe's."""
    known = {field.name for field in fields(SearchConfig)}  # a name becomes code below
    settings = {k: v for k, v in mapping(config.get("search")).items() if k in known}
    preset = PRESETS.get(str(settings.get("preset", "dada")))
    base = BASES.get(str(config.get("data")).partition(":")[0], Base())
    recipe = RECIPES.get(str(config.get("recipe")))
    if recipe is not None:
        preset, base = recipe.search or preset, recipe.base
    if preset is None:
        return {}
    if config.get("weights") and (recipe is None or recipe.search is None):
        preset = replace(preset, **SEARCH_FINE_TUNING)
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        usual = base if name == "base" else getattr(preset, name, None)
        if name == "base":
            value = Base(**{k: v for k, v in mapping(value).items() if hasattr(base, k)})
        elif isinstance(value, list):
            value = tuple(value)
        if name != "preset" and value != usual:
            changed[name] = value
    if "base" in changed:
        names = [name for name, base in NAMED_BASES.items() if base == changed["base"]]
        changed["base"] = names[0] if names else changed["base"]
    return changed


def asked_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What else a search was asked, by the names of `ASKED`."""
    asked = {name: config[name] for name in ASKED if config.get(name) is not None}
    weights = mapping(asked.pop("weights", None))
    if source := weights.get("source"):
        if weights.get("freeze", "norm") != "norm":
            asked["freeze"] = weights["freeze"]
        published = str(source).startswith("https://")
        asked |= {"pretrained": True} if published else {"weights": str(source)}
    if str(config.get("device", "cpu")) != "cpu":
        asked.setdefault("verify_budget", 0)  # on a GPU a search verifies unless told not to
    return asked


def search_command(
    config: Mapping[str, Any], out: Path | str, *, resume: bool = False
) -> str | None:
    """The command (or, where settings have no option, the Python) of a search with output `out`."""
    if config.get("command") != "search":
        return None
    changed = changed_settings(config)
    model = str(config.get("model", "small"))
    by_name = any(re.fullmatch(pattern, model) for pattern in BUILDERS)
    preset = str(mapping(config.get("search")).get("preset", "dada"))
    unnamed = {name for name in changed if name not in FLAGS}
    if isinstance(changed.get("base"), str):
        unnamed.discard("base")
    if not by_name or unnamed:
        return _search_call(
            config, changed, model if by_name else None, preset, str(out), resume=resume
        )
    words = ["dada", "search", data_argument(config) or "DATA", "--model", shell_word(model)]
    if preset != "dada":
        words += ["--preset", shell_word(preset)]
    for name, value in changed.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag)  # only flags that are off by default are options
        else:
            listed = isinstance(value, tuple)
            words += [flag, shell_word(",".join(map(str, value)) if listed else value)]
    words += _option_words(asked_of(config))
    for name, usual in (("seed", 0), ("device", "auto")):
        words += [f"--{name}", shell_word(config.get(name, usual))]
    words += ["--out", shell_word(out), *(["--resume"] if resume else [])]
    return " ".join(words)


def compare_commands(config: Mapping[str, Any], run: Path | str) -> list[str]:
    """To compare the policy of a run with the free ones, as it was searched, and to show both."""
    compared = shell_word(f"{run}-compared")
    words = ["dada", "compare", data_argument(config) or "DATA"]
    words += ["--policies", shell_word(f"{run},uniform,none"), "--seeds", "5"]
    model = str(config.get("model"))
    if any(re.fullmatch(pattern, model) for pattern in BUILDERS):
        words += ["--model", shell_word(model)]
    asked = asked_of(config)
    shared = ["image_size", "pretrained", "weights", "freeze"]
    if (recipe := RECIPES.get(str(config.get("recipe")))) is not None and recipe.train is not None:
        shared.append("recipe")  # the training that the policy is for
    words += _option_words({name: asked[name] for name in shared if name in asked})
    words += _base_words(_chosen_base(config) or changed_settings(config).get("base"))
    return [
        " ".join([*words, "--out", compared]),
        f"dada report {shell_word(run)} --comparison {compared}",
    ]


def _option_words(asked: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in asked.items():
        if isinstance(value, list):  # height and width
            value = "x".join(map(str, value))
        words += [ASKED[name]] if value is True else [ASKED[name], shell_word(value)]
    return words


def _chosen_base(config: Mapping[str, Any]) -> str | None:
    """What the search chose, where nobody had said."""
    name = config.get("chosen_base")
    return name if name in NAMED_BASES and name != "none" else None


def _base_words(base: str | Base | None) -> list[str]:
    """Options for what is done to every image besides a policy, as far as there are any."""
    if base is None:
        return []
    if isinstance(base, str):
        return ["--base", base]
    words = ["--base", "none"]
    words += ["--crop", str(base.crop)] if base.crop else []
    words += ["--flip"] if base.flip else []
    words += ["--turn"] if base.turn else []
    return words + (["--scale", f"{base.scale:g}"] if base.scale < 1 else [])


def _search_call(
    config: Mapping[str, Any],
    changed: dict[str, Any],
    model: str | None,
    preset: str,
    out: str,
    *,
    resume: bool,
) -> str:
    data = config.get("source") or config.get("data")
    given = data in EMBEDDED or config.get("source")
    lines = [
        f"{data!r}," if given else f"your_data,  # {comment_text(data)}",
        f"model={model!r},"
        if model
        else f"model=your_network,  # a {comment_text(config.get('model'))}",
    ]
    arguments = [
        f"preset={preset!r}",
        *(
            f"{'val_data' if name == 'val_source' else name}={value!r}"
            for name, value in asked_of(config).items()
        ),
        *(f"{name}={value!r}" for name, value in changed.items()),
        f"seed={config.get('seed', 0)!r}",
        f"device={config.get('device', 'auto')!r}",
        f"out={out!r}",
        *(["resume=True"] if resume else []),
    ]
    lines = [f"    {line}" for line in (*lines, *(f"{argument}," for argument in arguments))]
    base = "from dada.config import Base\n" if isinstance(changed.get("base"), Base) else ""
    return "\n".join([f"import dada\n{base}", "dada.search(", *lines, ")"])


def how_to_repeat(run: RunDirectory) -> Html | None:
    """Command, seed, versions and the fingerprint of the data."""
    content: list[object] = []
    if command := search_command(run.config, f"{run.path}-again"):
        content.append(code_block(command))
    facts: dict[str, object] = {}
    if run.config.get("seed") is not None:
        facts["seed"] = run.config["seed"]
    if fingerprint := run.config.get("fingerprint"):
        facts["data (sha256)"] = fill("<code>$f</code>", f=fingerprint)
    for session in run.sessions[-1:]:
        facts |= {name: value for name, value in session.items() if value is not None}
    if len(run.sessions) > 1:
        facts["sessions"] = f"{len(run.sessions)} (the last one is shown)"
    if not content and not facts:
        return None
    rows = join(
        fill('<tr><th scope="row">$name</th><td>$value</td></tr>', name=name, value=value)
        for name, value in facts.items()
    )
    if rows:
        content.append(fill('<table class="facts-table"><tbody>$rows</tbody></table>', rows=rows))
    words = (
        "The same seed, data, settings and machine give the same policy, on a CPU byte for byte."
    )
    return section("repeat", "Repeat it", lead(words), *content)


def loop_code(run: RunDirectory) -> str:
    return f"""import dada

policy = dada.Policy.load({str(run.path)!r})
augment = policy.transform()

for images, labels in loader:  # uint8, BCHW
    images = augment(images)  # a draw for every image
    loss = criterion(model(normalise(images)), labels)"""


def loader_code(run: RunDirectory) -> str:
    return f"""import dada
import torch
from torchvision import datasets
from torchvision.transforms import v2

policy = dada.Policy.load({str(run.path)!r})
steps = [
    v2.RandomResizedCrop(224),
    policy.transform(),  # before the image is a float
    v2.PILToTensor(),
    v2.ToDtype(torch.float32, scale=True),
]
train = datasets.ImageFolder("train", v2.Compose(steps))
loader = torch.utils.data.DataLoader(
    train, batch_size=64, shuffle=True, num_workers=2
)"""


def how_to_use(run: RunDirectory) -> Html | None:
    """The policy in the user's own training, with this package or without it."""
    if run.policy is None or run.unfinished:
        return None
    path = shell_word(run.path)
    exports = "\n".join(f"dada export {path} --to {target}" for target in EXPORT_TARGETS)
    return section(
        "use",
        "Use it",
        lead("A click selects a whole block."),
        fill(
            '<div class="codes">$blocks</div>',
            blocks=join(
                [
                    code_block(loop_code(run), "In a training loop, on a batch"),
                    code_block(exports, "As a file for another library, without this package"),
                    code_block(
                        f"dada apply {path} photos augmented --copies 4",
                        "As augmented copies of files",
                    ),
                    code_block(loader_code(run), "In a DataLoader, image by image"),
                ]
            ),
        ),
    )

"""What a search chose to do to every image besides its policy, in words."""

from __future__ import annotations

from dada.config import NAMED_BASES
from dada.policy import Policy
from dada.safe_json import mapping, number

WHAT = {
    "flip": "mirrored at random",
    "turn": "mirrored and turned at random",
    "turn-mild": "mirrored, turned and cut at random, down to 70% of its area",
    "photo-mild": "mirrored and cut at random, down to 70% of its area",
    "photo": "mirrored and cut at random, down to 35% of its area",
}


def chosen_base(policy: Policy) -> str | None:
    """A name in `NAMED_BASES`; None where no search chose one."""
    name = mapping(policy.provenance.get("base")).get("chosen")
    return name if isinstance(name, str) and name in NAMED_BASES else None


def is_about(policy: Policy, name: str, classes: int) -> bool:
    """Whether a search of such data found it."""
    data = mapping(policy.provenance.get("data"))
    return (data.get("name"), data.get("classes")) == (name, classes)


def base_sentence(policy: Policy) -> str | None:
    """What is done, and what that rests on; None for a policy whose search was told."""
    if "base" not in policy.provenance:
        return None
    name = chosen_base(policy)
    loss = mapping(mapping(policy.provenance["base"]).get("loss"))
    usual = next(iter(loss), name)  # what the others had to be clearly better than
    if name is None:
        return "Whether to mirror, turn or cut images was not asked, to save time: --base says."
    if name not in WHAT:
        # Small images do not know how much of an image has to be seen.
        cuts = any(NAMED_BASES[each].scale < 1 for each in NAMED_BASES.keys() & loss.keys())
        if usual in WHAT:
            why = f"that was clearly better than {WHAT[usual]}"
        elif cuts:
            why = "nothing else was clearly better"
        else:
            why = "mirroring was not clearly better, and cuts were not asked about"
        return f"Images are neither mirrored nor cut (--base {name}): {why}."
    if name == usual:
        return f"Every image is {WHAT[name]} (--base {name}): nothing else was clearly better."
    under, without = number(loss.get(name)), number(loss.get("none"))
    seen = "" if under is None or without is None else f": loss {under:.3f}, without {without:.3f}"
    return f"Every image is {WHAT[name]} (--base {name}){seen}."

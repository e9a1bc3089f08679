"""How sure a search was, in words: for the page and for the terminal."""

from __future__ import annotations

from dada.policy import Policy
from dada.policy.baselines import AS_NO_SIGNAL
from dada.safe_json import mapping, number

WORDS = ("clear", "weak", "none")
NOT_ASKED = (
    "Signal: not asked for. This search did not look ahead, so nothing says how much of its policy "
    "is chance."
)

# docs/fine-tuning-study.md: the second judge
OF_FEATURES = (
    " In studies of fine-tuning, policies found were no better than no policy, on average: compare."
)


def signal_word(policy: Policy) -> str | None:
    """One of `WORDS`; None for a policy that no search looked ahead for."""
    word = mapping(policy.provenance.get("signal")).get("word")
    return word if word in WORDS else None


def signal_sentence(policy: Policy) -> str | None:
    """The word, and what it rests on."""
    word, facts = signal_word(policy), mapping(policy.provenance.get("signal"))
    if word is None:  # searches of older versions looked ahead and did not say
        alone = "preset" in policy.provenance and not policy.provenance.get("lookahead")
        return NOT_ASKED if alone else None
    agreement, chance = number(facts.get("agreement")), number(facts.get("chance"))
    agree = "" if agreement is None else f"halves of its runs agree by {agreement:.2f} (of 1)"
    luck = "" if chance is None else f"the chance of such differences by luck is {_share(chance)}"
    reasons = "; ".join(filter(None, (agree, luck)))
    if word == "none":
        why = reasons if facts.get("learned", True) else "its networks did no better than guessing"
        usual, named, _ = str(policy.provenance.get("name")).partition(AS_NO_SIGNAL)
        what = f"{usual}, which needs no search" if named else "a policy that needs no search"
        return f"Signal: none ({why}). What is returned is {what}, and not a finding."
    said = f"Signal: {word} ({reasons})."
    if (apart := number(facts.get("distance"))) is not None:
        # Verification may have returned another.
        said += f" In the policy that was found {apart:.0%} of what is done to images is not as in "
        said += "uniform."
    tuned = mapping(policy.provenance.get("lookahead")).get("features")
    unverified = not policy.provenance.get("verification")
    return said + OF_FEATURES if tuned and unverified and policy.subpolicies else said


def _share(chance: float) -> str:
    return "under 0.1%" if chance < 0.001 else f"{chance:.1%}"

"""What the page may ask of the library: policies, images, draws, and a file to save to."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from dada.data.images import file_info, image_info, open_file, to_eight_bits, white_level
from dada.policy import Policy, names
from dada.policy.space import SPACES
from dada.report.contact_sheet import pictures_for
from dada.report.gallery import as_data, in_words
from dada.report.samples import Sample, read_samples
from dada.runlog import versions
from dada.safe_text import printable, shell_word

DRAWS = 12
PICTURES = 8  # of the data, to begin with
MOST_PICTURES = 40  # then the oldest that was dropped in gives way
MOST_PIXELS = 64_000_000
LONGEST_SIDE = 512  # of a picture that is kept: more than any draw is shown with
SHOWN_SIDE, THUMBNAIL_SIDE = 224, 96
MOST_SUBPOLICIES, MOST_STEPS = 1_000, 8
LARGEST_SEED = 2**32


class Session:
    """One page's worth of state. Every answer is plain JSON; mistakes are ValueErrors."""

    def __init__(
        self,
        policy: str | os.PathLike[str],
        *,
        against: str | os.PathLike[str] | None,
        data: str | None,
        pictures: list[Sample],
        out: Path,
    ) -> None:
        self.data, self.out = data, out
        self.given = [str(policy), str(against or policy)]
        self.sides = [(printable(name), _bounded(Policy.load(name))) for name in self.given]
        self.pictures = dict(enumerate(pictures))
        self.first_dropped = self._next = len(pictures)
        self._lock = threading.Lock()  # requests come in threads of their own

    def start(self) -> dict[str, Any]:
        """All that the page shows before anything is asked for."""
        spaces = {
            name: [{"op": op.name, "strength": op.has_strength} for op in space.ops]
            for name, space in SPACES.items()
        }
        return {
            "sides": [{"name": name, "policy": _content(policy)} for name, policy in self.sides],
            "names": names(),
            "spaces": spaces,
            "draws": DRAWS,
            "pictures": [self._entry(key) for key in self.pictures],
        }

    def load(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A policy by its name, or from the text of a file; never from a path."""
        if "text" in asked:
            policy, name = Policy.from_json(_text(asked, "text")), "a file of yours"
        elif (name := _text(asked, "name")) in (given := dict(self.sides)):
            policy = given[name]
        elif name in names() or name.startswith("randaugment:"):
            policy = Policy.load(name)
        else:
            raise ValueError(f"no policy {printable(name)!r} among those that have a name")
        return {"name": name, "policy": _content(_bounded(policy))}

    def add_picture(self, content: bytes) -> dict[str, Any]:
        """A picture that was dropped on the page, kept no larger than it is shown."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "picture"
            file.write_bytes(content)
            try:
                height, width = file_info(str(file)).size
                if height * width > MOST_PIXELS:
                    raise ValueError(f"it has {height * width / 1e6:.0f} million pixels")
                opened = open_file(str(file), draft=(LONGEST_SIDE,) * 2)
                image = to_eight_bits(opened, white_level(image_info(opened).peak))
            except ValueError as error:
                reason = str(error).removeprefix(f"{file}: ")
                raise ValueError(f"the picture was not taken: {printable(reason)}") from None
        image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
        with self._lock:
            dropped = [key for key in self.pictures if key >= self.first_dropped]
            if len(self.pictures) >= MOST_PICTURES:
                del self.pictures[dropped[0] if dropped else min(self.pictures)]
            key, self._next = self._next, self._next + 1
            self.pictures[key] = Sample(image=image, label="dropped")
        return self._entry(key)

    def draw(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Twelve draws of one picture under the policy that the page has, and its words."""
        policy, seed = _read_policy(asked), asked.get("seed")
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < LARGEST_SEED:
            raise ValueError(f"seed should be a whole number below {LARGEST_SEED}")
        kept = self._picture(asked.get("picture"))
        with self._lock:
            draws = [_one_draw(policy, kept.image, seed * DRAWS + k) for k in range(DRAWS)]
        return {
            "draws": draws,
            "words": [[in_words(policy, step) for step in s.ops] for s in policy.subpolicies],
            "rates": policy.op_probabilities(),
        }

    def save(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Write the policy to a new file, and say how to compare it."""
        policy, before = _read_policy(asked), printable(_text(asked, "name"))
        # What was verified was another policy: of its provenance only the name is still true.
        about = {"name": self.out.stem, "edited_from": before, "versions": versions()}
        edited = Policy(policy.subpolicies, policy.space, policy.sampling, about)
        with self._lock:
            file = _not_yet_there(self.out)
            edited.save(file)
        rivals = [str(file), *dict.fromkeys([self.given[0], "uniform", "none"])]
        data = "DATA" if self.data is None else shell_word(self.data)
        command = f"dada compare {data} --policies {shell_word(','.join(rivals))}"
        return {"file": printable(file), "command": command}

    def _entry(self, key: int) -> dict[str, Any]:
        kept = self.pictures[key]
        return {
            "id": key,
            "name": printable(kept.label),
            "thumbnail": as_data(kept.image, THUMBNAIL_SIDE),
        }

    def _picture(self, key: Any) -> Sample:
        if not isinstance(key, int) or key not in self.pictures:
            raise ValueError("this picture is no longer kept; drop it again")
        return self.pictures[key]


def pictures_of(policy: str | os.PathLike[str], data: str | None) -> list[Sample]:
    """Pictures to begin with: of the data, else those that the run kept, else of the digits."""
    if data is None and Path(policy).is_dir() and (kept := read_samples(Path(policy))):
        return kept[:PICTURES]
    where = Path(data or "digits").name
    pictures = pictures_for(data, PICTURES)
    return [replace(sample, label=f"{where}, {i}") for i, sample in enumerate(pictures, 1)]


def _one_draw(policy: Policy, image: Image.Image, seed: int) -> dict[str, Any]:
    """A seed for every draw: what a slider changes of one leaves the chances of others alone."""
    done, words = policy.transform(seed=seed).explained(image)
    return {"picture": as_data(done, SHOWN_SIDE), "words": words}


def _content(policy: Policy) -> Any:
    return json.loads(policy.to_json())


def _read_policy(asked: dict[str, Any]) -> Policy:
    """What the page sends goes through the reader of policy files, like any file."""
    return _bounded(Policy.from_json(json.dumps(asked.get("policy"))))


def _bounded(policy: Policy) -> Policy:
    longest = max((len(subpolicy.ops) for subpolicy in policy.subpolicies), default=0)
    if len(policy.subpolicies) > MOST_SUBPOLICIES or longest > MOST_STEPS:
        raise ValueError(
            f"the page takes policies of up to {MOST_SUBPOLICIES} sub-policies of up to "
            f"{MOST_STEPS} operations, this one has {len(policy.subpolicies)} of up to {longest}"
        )
    return policy


def _text(asked: dict[str, Any], field: str) -> str:
    if not isinstance(asked.get(field), str):
        raise ValueError(f"{field} should be text")
    return str(asked[field])


def _not_yet_there(file: Path) -> Path:
    """`file`, or the first of file-2, file-3, ... that does not exist."""
    tried, number = file, 1
    while tried.exists():
        number += 1
        tried = file.with_stem(f"{file.stem}-{number}")
    return tried

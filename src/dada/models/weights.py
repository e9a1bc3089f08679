"""Trained weights: which there are for a name, where they lie or come from, and reading them.

Nothing is downloaded unless a user asks for it, and nothing in a file is run.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import re
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dada import safe_json
from dada.names import is_factory
from dada.runlog.files import (
    AGAIN,
    AS_SAFETENSORS,
    MOST_LOOKED_AT,
    check_held,
    is_safetensors,
    read_safetensors,
    read_stored,
)
from dada.safe_files import open_to_read
from dada.safe_text import first_line, printable, quoted

Tell = Callable[[str], None]
"""Is given a line for the user."""
MeanStd = tuple[tuple[float, ...], tuple[float, ...]]
"""Of every channel."""

ALIASES = {"resnet50": "torchvision:resnet50"}
ABOUT, OWN_WEIGHTS = "model.json", "model.safetensors"  # what `dada train` leaves behind
SECONDS_TO_ANSWER = 10
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
FREEZE = ("none", "norm", "backbone")
TORCH_PICKLE = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)  # torch before 1.6
INSIDE = ("state_dict", "model_ema", "model")  # under which trainers keep the weights in a file


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """Trained weights by name, where they came from, and what their network was trained with."""

    source: str
    tensors: Mapping[str, Tensor]
    mean_std: MeanStd | None = None  # of normalising, in 0..1; None: nobody knows
    freeze: str = "norm"  # what does not learn: one of FREEZE

    def normalisation(self, channels: int) -> MeanStd | None:
        """For images of so many channels: grey ones get the mean of the three."""
        if self.mean_std is None or len(self.mean_std[0]) == channels:
            return self.mean_std
        mean, std = (sum(each) / len(each) for each in self.mean_std)
        return (mean,) * channels, (std,) * channels

    @cached_property
    def digest(self) -> str:
        """The same for the same numbers under the same names."""
        hasher = hashlib.sha256()
        for name in sorted(self.tensors):
            numbers = self.tensors[name].detach().cpu().contiguous()
            hasher.update(f"{name} {numbers.dtype} {tuple(numbers.shape)}".encode())
            hasher.update(numbers.flatten().view(torch.uint8).numpy().tobytes())
        return hasher.hexdigest()[:16]


def from_file(
    path: str | os.PathLike[str], name: str | None, *, option: str = "weights"
) -> tuple[str, Weights]:
    """The network that the weights of a file are for, and the weights.

    A run directory of `dada train` says itself which network it holds, and how its images were
    normalised. For other files that is what the package of the network says. `option` is what the
    user gave the file by, for messages.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / OWN_WEIGHTS
    if not file.is_file():
        raise ValueError(f"`{option}`: there is no file {file}")
    about = _about(file)
    name = name or about.get("model")
    if name is None:
        raise ValueError(f"`{option}` {file}: give `model` too, the network they belong to")
    if about.get("mean") is None:
        mean_std = configured_mean_std(name)
    else:
        mean_std = tuple(about["mean"]), tuple(about["std"])
    try:
        tensors = _read(file)
    except ValueError as error:
        raise ValueError(f"`{option}` {file}: {error}") from None
    return name, Weights(source=str(path), tensors=tensors, mean_std=mean_std)


def _about(file: Path) -> dict[str, Any]:
    beside = file.with_name(ABOUT)
    if file.name != OWN_WEIGHTS or not beside.is_file():
        return {}
    about = safe_json.read_object(beside)
    name = about.get("model")
    if name is not None and (not isinstance(name, str) or is_factory(name)):
        raise ValueError(
            f"{beside} names the model {quoted(name)}, which would be imported and called; give "
            "`model` yourself if you would run it"
        )
    mean, std = about.get("mean"), about.get("std")
    if (mean, std) != (None, None) and not _can_normalise(mean, std):
        raise ValueError(f"{beside} is damaged: mean {quoted(mean)}, std {quoted(std)}")
    return about


def _can_normalise(mean: Any, std: Any) -> bool:
    if not (isinstance(mean, list) and isinstance(std, list) and len(mean) == len(std) > 0):
        return False
    numbers = all(type(each) in (int, float) for each in (*mean, *std))
    return numbers and max(map(abs, mean)) < 1e6 and 1e-6 < min(std) <= max(std) < 1e6


def _read(file: Path) -> dict[str, Tensor]:
    """Finite numbers by name; the ValueError does not name the file."""
    found = _content(file)
    for key in INSIDE:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found:
        raise ValueError("it holds no weights by name")
    for key, each in found.items():
        if not (isinstance(key, str) and isinstance(each, Tensor) and _is_plain(each)):
            raise ValueError(f"{quoted(key)} is no tensor of numbers; {AS_SAFETENSORS}")
        if not _is_finite(each):
            raise ValueError(
                f"{quoted(key)} holds NaN or infinity, from which nothing can be trained; take "
                "weights from before that"
            )
    # What DataParallel and torch.compile put before every name.
    tensors: dict[str, Tensor] = dict(found)
    for prefix in ("module.", "_orig_mod."):
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): each for name, each in tensors.items()}
    return tensors


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    )


def _is_finite(tensor: Tensor) -> bool:
    try:
        return bool(tensor.isfinite().all())
    except NotImplementedError:  # numbers of a few bits, which have no infinity
        return True


def _content(file: Path) -> Any:
    """What is in a file of safetensors or of torch, whose forms are a zip file and a pickle."""
    try:
        with open_to_read(file) as opened:
            begin = opened.read(MOST_LOOKED_AT)
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from None
    if is_safetensors(begin) or not begin.startswith((b"PK", TORCH_PICKLE)):
        return read_safetensors(file)
    zipped = begin.startswith(b"PK")
    if zipped and not zipfile.is_zipfile(file):  # what makes it one stands at its end
        raise ValueError(f"cut off or damaged; {AGAIN}")
    try:
        if zipped:
            return read_stored(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
        check_held(content)
        return content
    except pickle.UnpicklingError:
        # A zip file that is whole is not cut off.
        state = (
            "it holds more than numbers" if zipped else "it is cut off or holds more than numbers"
        )
        raise ValueError(f"{state}, and a file's code is not run; {AS_SAFETENSORS}") from None
    except (ValueError, zipfile.BadZipFile) as error:  # what we or zipfile see is wrong
        reason = printable(first_line(error))
        raise ValueError(f"it cannot be read ({reason}); {AGAIN}, or {AS_SAFETENSORS}") from None
    except Exception:  # a damaged file makes torch raise anything
        what = "cut off, damaged or not of torch.save"
        raise ValueError(f"{what}; {AGAIN}, or {AS_SAFETENSORS}") from None


@dataclass(frozen=True, kw_only=True)
class Published:
    """A file of weights that a package names for one of its networks."""

    name: str  # of the network, as the user gives it
    address: str
    hub: str | None = None  # repository of the Hugging Face hub; None: a plain address

    @property
    def cached(self) -> Path | None:
        """Where it lies on this machine, if an earlier download left it there."""
        if self.hub is None:
            return self._place if self._place.is_file() else None
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.hub, OWN_WEIGHTS)
        return Path(found) if isinstance(found, str) else None

    @property
    def _place(self) -> Path:
        return Path(torch.hub.get_dir()) / "checkpoints" / Path(self.address).name

    def read(self, tell: Tell) -> Weights:
        """From this machine, else from the network, which is said before it is done."""
        file = self.cached
        if file is None:
            tell(f"weights of {self.name}: downloading {self.address}")
            file = self._download()
        try:
            tensors = _read(file)
        except ValueError as error:
            # In the hub's cache this is a link; without it the damaged file would be linked again.
            damaged = file.resolve()
            reason = str(error).partition("; ")[0]  # without advice for a user's own file
            raise ValueError(
                f"weights of {self.name}: {damaged}: {reason}; delete this file to have it "
                "downloaded again"
            ) from None
        mean_std = configured_mean_std(self.name)
        return Weights(source=self.address, tensors=tensors, mean_std=mean_std)

    def _download(self) -> Path:
        advice = "connect, or give a file with `weights`"
        try:
            # The hub's own client tries for half a minute before it gives up.
            asked = urllib.request.Request(self.address, method="HEAD")
            urllib.request.urlopen(asked, timeout=SECONDS_TO_ANSWER).close()
            if self.hub is not None:
                from huggingface_hub import hf_hub_download

                return Path(hf_hub_download(self.hub, OWN_WEIGHTS))
            self._place.parent.mkdir(parents=True, exist_ok=True)
            # torchvision's file names end with the beginning of their sha256.
            named = re.search(r"-([0-9a-f]{8,})\.", self._place.name)
            torch.hub.download_url_to_file(
                self.address, str(self._place), named[1] if named else None, progress=False
            )
        except Exception as error:  # the errors of the hub's client have no class in common
            problem = _problem_of(error, self.address)
            raise ValueError(f"weights of {self.name}: {problem}; {advice}") from None
        return self._place


def _problem_of(error: Exception, address: str) -> str:
    """Why a download failed."""
    answer = getattr(error, "response", error)
    code = getattr(answer, "status_code", None) or getattr(answer, "code", None)
    if code is not None:
        return f"{address} answered {code}"
    reason = printable(getattr(error, "reason", None) or first_line(error))
    if isinstance(error, OSError) and (error.filename or error.errno in NO_ROOM):
        return f"what {address} gives cannot be kept ({reason})"
    if isinstance(error, RuntimeError):  # torch's, of a checksum
        return f"what {address} gave is cut off or damaged ({reason})"
    return f"no connection to {address} ({reason})"


def published(name: str) -> Published:
    """What a package publishes for a network; ValueError where it has no such, or no weights."""
    package, _, rest = ALIASES.get(name, name).partition(":")
    if package == "timm" and (config := _timm_config(rest)) is not None:
        if config.hf_hub_id:
            from huggingface_hub import hf_hub_url

            address = hf_hub_url(config.hf_hub_id, OWN_WEIGHTS)
            return Published(name=name, address=address, hub=config.hf_hub_id)
        if config.url:
            return Published(name=name, address=config.url)
    if package == "torchvision" and (weights := _torchvision_weights(rest)) is not None:
        return Published(name=name, address=weights.url)
    raise ValueError(
        f"`pretrained`: there are no published weights for model {name!r}; take a network of timm "
        "or torchvision that has some, or give a file with `weights`"
    )


def configured_mean_std(name: str) -> MeanStd | None:
    """How the package of a network normalises its images; None where it does not say."""
    package, _, rest = ALIASES.get(name, name).partition(":")
    if package == "timm" and (config := _timm_config(rest)) is not None:
        return tuple(config.mean), tuple(config.std)
    if package == "torchvision" and (weights := _torchvision_weights(rest)) is not None:
        preprocessing = weights.transforms()
        return tuple(preprocessing.mean), tuple(preprocessing.std)
    return None


def _timm_config(name: str) -> Any:
    try:
        import timm
    except ImportError:
        return None
    return timm.get_pretrained_cfg(name) if timm.is_model(name) else None


def _torchvision_weights(name: str) -> Any:
    from torchvision import models

    if name not in models.list_models(module=models):
        return None
    found = models.get_model_weights(name)
    return getattr(found, "DEFAULT", None)

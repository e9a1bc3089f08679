"""Trained weights put into a network that may have another head, or read grey images."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dada.models.weights import Weights
from dada.safe_text import LONGEST_NAME, listed

HEADS = ("fc", "classifier", "heads", "head")  # attributes under which networks keep the last layer
LEAST_FOUND = 0.9  # of the network's numbers, besides the head
LEAST_USED = 0.75  # of the file's: some hold heads that only training had
MOST_NAMED = 20
HEAD_DEVIATION = 0.01  # of a new head's weights


def fit_weights(model: nn.Module, weights: Weights, name: str) -> str:
    """Copy what belongs to the network; the note says what was replaced, adapted or left out.

    A head of another number of classes, or one that the weights lack, is new: untrained, and quiet.
    ValueError where the weights are those of another network.
    """
    backbone = getattr(model, "backbone_net", None)
    if backbone is not None and not model.state_dict().keys() & weights.tensors.keys():
        return f"backbone: {fit_weights(backbone, weights, name)}"
    own = model.state_dict()
    tensors = _resized(model, weights.tensors, own)
    head = head_of(model)
    notes, taken, new_head = [], dict[str, Tensor](), False
    for key, mine in own.items():
        theirs = tensors.get(key)
        if theirs is not None and theirs.shape == mine.shape:
            taken[key] = theirs
        elif head is not None and key.startswith(f"{head}."):
            if theirs is not None and theirs.shape[1:] != mine.shape[1:]:
                raise _another(weights, name, f"the head {key} {_versus(theirs, mine)}")
            taken[key] = _quiet(mine)
            if mine.dim() > 1:
                new_head = True
                was = "the file has none" if theirs is None else f"was {len(theirs):,}"
                notes.append(f"new head for {len(mine)} classes ({was})")
        elif theirs is None:
            continue
        elif (adapted := _for_channels(theirs, mine)) is not None:
            taken[key] = adapted
            how = "summed" if mine.shape[1] == 1 else "repeated"
            notes.append(f"{key} {how} over its colours for {mine.shape[1]} channel(s)")
        else:
            raise _another(weights, name, f"{key} {_versus(theirs, mine)}")
    notes += _named_rest(own, tensors, taken, head, new_head, weights, name)
    model.load_state_dict(taken, strict=False)
    _freeze(model, weights.freeze, head)
    return "; ".join([f"weights {weights.source}", *dict.fromkeys(notes)])


def _freeze(model: nn.Module, what: str, head: str | None) -> None:
    """`norm`: BatchNorm goes on with the statistics it has; `backbone`: only the head learns."""
    if what == "none":
        return
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.keeps_statistics = True  # type: ignore[assignment]
    if what == "backbone":
        if head is None:
            raise ValueError("`freeze='backbone'`: no head is found in this network to train")
        for name, weight in model.named_parameters():
            weight.requires_grad_(name.startswith(f"{head}."))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients; afterwards every layer is in the mode it was in."""
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(modes[0][1])  # some layers do more there than set their mode, as LoRA's
        for layer, training in modes:
            layer.training = training


def set_training(model: nn.Module) -> None:
    """Training mode, except for layers that keep their statistics."""
    model.train()
    for layer in model.modules():
        if getattr(layer, "keeps_statistics", False):
            layer.eval()


def _quiet(fresh: Tensor) -> Tensor:
    """The same directions, but small: loud logits of a new head would spoil trained features.

    timm starts EfficientNet's head of two classes 40 times as loud as this.
    """
    if fresh.dim() == 1:
        return torch.zeros_like(fresh)
    return fresh * (HEAD_DEVIATION / fresh.std().clamp(min=1e-12))


def head_of(model: nn.Module) -> str | None:
    """The path of the layer that gives the logits."""
    config = getattr(model, "pretrained_cfg", None)
    classifier = config.get("classifier") if isinstance(config, Mapping) else None
    if isinstance(classifier, tuple | list):  # networks that were distilled have two
        classifier = classifier[0] if classifier else None
    if isinstance(classifier, str) and hasattr(model, classifier.partition(".")[0]):
        return classifier
    for attribute in HEADS:
        if not isinstance(top := getattr(model, attribute, None), nn.Module):
            continue
        layers = [p for p, m in top.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        if layers:
            return ".".join(filter(None, (attribute, layers[-1])))
    return None


def _for_channels(theirs: Tensor, mine: Tensor) -> Tensor | None:
    """A first convolution of RGB for other images, such that a grey image gives what it gave."""
    alike = theirs.dim() == mine.dim() == 4 and theirs.shape[0] == mine.shape[0]
    if not alike or theirs.shape[1] != 3 or theirs.shape[2:] != mine.shape[2:]:
        return None
    channels = mine.shape[1]
    return theirs.sum(1, keepdim=True).expand(-1, channels, -1, -1) / channels


def _resized(
    model: nn.Module, tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Position embeddings for images of this size, by the functions of the network's package."""
    differs = [key for key, each in tensors.items() if key in own and each.shape != own[key].shape]
    if not any("pos_embed" in key for key in differs):
        return tensors
    package = sys.modules[type(model).__module__]
    if (adapt := getattr(package, "checkpoint_filter_fn", None)) is not None:  # timm
        return adapt(dict(tensors), model)  # type: ignore[no-any-return]
    if (adapt := getattr(package, "interpolate_embeddings", None)) is not None:  # torchvision
        from collections import OrderedDict

        return adapt(  # type: ignore[no-any-return]
            model.image_size, model.patch_size, OrderedDict(tensors)
        )
    return tensors


def _named_rest(
    own: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    taken: Mapping[str, Tensor],
    head: str | None,
    new_head: bool,
    weights: Weights,
    name: str,
) -> list[str]:
    """Notes about what only one side has; ValueError where that is too much to be chance."""

    def in_head(key: str) -> bool:
        return head is not None and key.startswith(f"{head}.")

    body = {key: each for key, each in own.items() if not in_head(key)}
    expected = body if new_head else own
    missing = [
        key for key in expected if key not in tensors and not key.endswith("num_batches_tracked")
    ]
    others = {key: each for key, each in tensors.items() if "aux" not in key.lower()}
    spare = [key for key in tensors if key not in own]
    found = _share([key for key in body if key in taken], body)
    used = _share([key for key in others if key in own], others)
    if found < LEAST_FOUND or used < LEAST_USED:
        first = f"it has no {missing[0]}" if found < LEAST_FOUND else f"no place for {spare[0]}"
        share = f"{found:.0%} of the network is there, {used:.0%} of the file fits"
        raise _another(weights, name, f"{share}, {first}")
    notes = []
    if missing:
        notes.append(f"not in the file, so untrained: {listed(missing, MOST_NAMED, LONGEST_NAME)}")
    if spare:
        notes.append(f"left out of the file: {listed(spare, MOST_NAMED, LONGEST_NAME)}")
    return notes


def _share(keys: list[str], of_all: Mapping[str, Tensor]) -> float:
    """All, where there is nothing: a network may be no more than its head."""
    whole = sum(each.numel() for each in of_all.values())
    return sum(of_all[key].numel() for key in keys) / whole if whole else 1.0


def _versus(theirs: Tensor, mine: Tensor) -> str:
    return f"is {tuple(theirs.shape)} there and {tuple(mine.shape)} here"


def _another(weights: Weights, name: str, reason: str) -> ValueError:
    return ValueError(f"weights {weights.source}: not those of model {name!r}: {reason}")

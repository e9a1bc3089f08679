"""Networks of other packages: torchvision, timm, and the user's own "package.module:factory"."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dada.models.fitting import evaluating
from dada.names import did_you_mean


def from_torchvision(
    name: str, num_classes: int, channels: int, image_size: tuple[int, int]
) -> nn.Module:
    """A classification network of torchvision.models, untrained, with head and stem replaced."""
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise ValueError(
            f"model 'torchvision:{name}': torchvision has no such classification model"
            f"{did_you_mean(name, known)}"
        )
    arguments: dict[str, Any] = {"num_classes": num_classes}
    if name.startswith("vit_"):
        arguments["image_size"] = image_size[0]
    if name in ("googlenet", "inception_v3"):
        # Auxiliary heads would make the output a tuple in training.
        arguments |= {"aux_logits": False, "init_weights": True}
    model = models.get_model(name, weights=None, **arguments)
    if channels != 3:
        replace_first_convolution(model, channels, f"torchvision:{name}")
    return _checked(model, f"torchvision:{name}", num_classes, channels, image_size)


def from_timm(name: str, num_classes: int, channels: int, image_size: tuple[int, int]) -> nn.Module:
    """An untrained timm network."""
    try:
        import timm
    except ImportError:
        raise ValueError(
            f"model 'timm:{name}': this needs the package timm; run: pip install timm"
        ) from None
    if not timm.is_model(name):
        raise ValueError(
            f"model 'timm:{name}': timm has no such model{did_you_mean(name, timm.list_models())}"
        )
    arguments: dict[str, Any] = {"num_classes": num_classes, "in_chans": channels}
    try:
        # Transformers must know the image size; convolutional networks refuse the argument.
        model = timm.create_model(name, img_size=image_size, **arguments)
    except TypeError:
        model = timm.create_model(name, **arguments)
    return _checked(model, f"timm:{name}", num_classes, channels, image_size)


def from_factory(
    path: str, num_classes: int, channels: int, image_size: tuple[int, int]
) -> nn.Module:
    """Call package.module:factory with num_classes, and channels and image_size if it names them.

    Modules in the working directory can be imported.
    """
    module_name, _, attribute = path.partition(":")
    with _working_directory_importable():
        factory = _import_factory(path, module_name, attribute)
        model = _call_factory(factory, path, num_classes, channels, image_size)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model {path!r}: it must return a torch.nn.Module, but gave {type(model).__name__}"
        )
    return _checked(model, path, num_classes, channels, image_size)


def _call_factory(
    factory: Callable[..., Any],
    path: str,
    num_classes: int,
    channels: int,
    image_size: tuple[int, int],
) -> Any:
    offered = {"num_classes": num_classes, "channels": channels, "image_size": image_size}
    try:
        accepted = dict(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # some built-in callables have no signature
        accepted = {}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    by_name = {key: value for key, value in offered.items() if key in accepted}
    try:
        if "num_classes" in accepted or takes_any:
            return factory(**{"num_classes": num_classes, **by_name})
        return factory(num_classes, **by_name)
    except Exception as problem:
        raise ValueError(
            f"model {path!r}: calling it with num_classes={num_classes} failed "
            f"({type(problem).__name__}: {problem})"
        ) from problem


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _import_factory(path: str, module_name: str, attribute: str) -> Callable[..., Any]:
    if not module_name or not attribute:
        raise ValueError(f"model {path!r}: write package.module:factory")
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(module_name)
    except Exception as problem:
        raise ValueError(
            f"model {path!r}: cannot import {module_name} ({type(problem).__name__}: {problem}); "
            "it must be installed or lie in the working directory"
        ) from problem
    factory = getattr(module, attribute, None)
    if not callable(factory):
        what = "has no" if factory is None else "has no callable"
        raise ValueError(f"model {path!r}: the module {module_name} {what} {attribute!r}")
    return factory  # type: ignore[no-any-return]


def replace_first_convolution(model: nn.Module, channels: int, name: str) -> None:
    """Make the convolution that reads RGB read `channels` instead."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == 3:
            fresh = nn.Conv2d(
                channels,
                module.out_channels,
                module.kernel_size,  # type: ignore[arg-type]
                module.stride,  # type: ignore[arg-type]
                module.padding,  # type: ignore[arg-type]
                module.dilation,  # type: ignore[arg-type]
                bias=module.bias is not None,
            )
            nn.init.kaiming_normal_(fresh.weight, mode="fan_out", nonlinearity="relu")
            parent, _, last = path.rpartition(".")
            setattr(model.get_submodule(parent), last, fresh)
            return
    raise ValueError(
        f"model {name!r}: it has no convolution on RGB to adapt to {channels} channels"
    )


def check_logits(
    model: nn.Module,
    images_BCHW: Tensor,
    num_classes: int,
    name: str | None = None,
    shape: tuple[int, ...] | None = None,
) -> None:
    """ValueError naming the model unless it maps the images to (B, num_classes), or to `shape`."""
    name = name or type(model).__name__
    output = _output(model, images_BCHW, name)
    wanted = shape or (len(images_BCHW), num_classes)
    if not isinstance(output, Tensor):
        raise ValueError(
            f"model {name!r}: it must return a tensor of logits {wanted}, but returned "
            f"{type(output).__name__}"
        )
    if tuple(output.shape) != wanted:
        words = "(B, num_classes)" if shape is None else "(B, num_classes, H, W)"
        raise ValueError(
            f"model {name!r}: its output must have shape {words} = {wanted}, but has "
            f"{tuple(output.shape)}"
        )


def check_detections(model: nn.Module, images_BCHW: Tensor) -> None:
    """ValueError naming the model unless it finds objects as torchvision's detectors do."""
    name = type(model).__name__
    output = _output(model, images_BCHW, name)
    whole = isinstance(output, list) and len(output) == len(images_BCHW)
    if not whole or not all({"boxes", "labels", "scores"} <= set(each) for each in output):
        raise ValueError(
            f"model {name!r}: for detection it must be called as torchvision's detectors are, and "
            "return a dict of boxes, labels and scores for every image"
        )


def _output(model: nn.Module, images_BCHW: Tensor, name: str) -> Any:
    try:
        with evaluating(model):
            return model(images_BCHW)
    except Exception as problem:
        shape = tuple(images_BCHW.shape[1:])
        raise ValueError(
            f"model {name!r}: it fails on images of shape (C, H, W) = {shape} "
            f"({type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''})"
        ) from problem


def _checked(
    model: nn.Module, name: str, num_classes: int, channels: int, image_size: tuple[int, int]
) -> nn.Module:
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    check_logits(model, torch.zeros(2, channels, *image_size, device=device), num_classes, name)
    return model

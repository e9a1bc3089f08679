"""RF-DETR: a Python file with the dictionary that its training takes as `aug_config`."""

from __future__ import annotations

from pprint import pformat
from typing import Any

from dada.exchange.exports import albumentations
from dada.exchange.exports.inline import heading
from dada.exchange.exports.physical_policy import PhysicalPolicy

HEADER = [
    "For RF-DETR, tried with 1.11.2, with Albumentations 2.0.8 (pip install 'rfdetr[augment]').",
    "",
    "    from this_file import aug_config",
    "    RFDETRNano().train(dataset_dir='cells', aug_config=aug_config)",
    "",
    "It takes the place of RF-DETR's own augmentation, a mirror image half of the time; to have",
    "that too: {'HorizontalFlip': {'p': 0.5}, **aug_config}. Its resizing and cropping stay.",
    "Not with augmentation_backend='kornia' or 'auto': that knows no choice between sub-policies.",
    *albumentations.TARGETS_LOST,
    *albumentations.NOTES,
]


def write(policy: PhysicalPolicy) -> str:
    config = by_name(albumentations.chosen(policy)) if policy.subpolicies else {}
    written = pformat(config, width=100, compact=True, sort_dicts=False)
    return "\n".join([*heading(policy, HEADER), "", f"aug_config = {written}"]) + "\n"


def by_name(node: dict[str, Any]) -> dict[str, Any]:
    """{name: arguments}, as RF-DETR writes a transform; those inside it likewise."""
    arguments = dict(node)
    name = arguments.pop("__class_fullname__")
    if "transforms" in arguments:
        arguments["transforms"] = [by_name(each) for each in arguments["transforms"]]
    return {name: arguments}

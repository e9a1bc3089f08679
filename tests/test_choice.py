"""The network and image size for who names none."""

from __future__ import annotations

import pytest
import torch

import dada
from dada.models.choice import LARGER, LIGHT, default_network


def none(name: str) -> bool:
    return False


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_small_images_ask_for_nothing(device: str) -> None:
    choice = default_network(device, (64, 64), 500, at_hand=lambda name: pytest.fail("no look"))
    assert choice.name == ("small" if device == "cpu" else "wrn40_2")
    assert choice.why is None and not choice.pretrained and choice.side is None


def test_a_pretrained_network_that_is_at_hand_is_taken() -> None:
    cpu = default_network("cpu", (224, 224), 855, at_hand=lambda name: name == LIGHT[1])
    assert (cpu.name, cpu.pretrained, cpu.side) == (LIGHT[1], True, 96)
    assert cpu.why is not None and "on this machine" in cpu.why
    assert cpu.image_size((224, 300)) == (96, 129) and cpu.image_size((80, 90)) == (80, 90)
    card = default_network("cuda", (224, 224), 855, at_hand=lambda name: name in LARGER)
    assert (card.name, card.pretrained, card.side) == (LARGER[0], True, None)
    heavy = default_network("cpu", (224, 224), 855, at_hand=lambda name: name in LARGER)
    assert heavy.name == "small", "too slow on a CPU"


def test_damaged_weights_are_passed_over() -> None:
    def at_hand(name: str) -> bool:
        if name == LIGHT[0]:
            raise ValueError("cut off")
        return name == LIGHT[2]

    choice = default_network("cpu", (224, 224), 855, at_hand=at_hand)
    assert (choice.name, choice.damaged) == (LIGHT[2], ("cut off",))


def test_few_photographs_do_not_train_a_large_network_from_scratch() -> None:
    few = default_network("cuda", (224, 224), 855, at_hand=none)
    assert (few.name, few.pretrained, few.side) == ("torchvision:resnet18", False, 128)
    assert few.why is not None and "855 images" in few.why and "--pretrained" in few.why
    many = default_network("cuda", (224, 224), 50_000, at_hand=none)
    assert many.name == "resnet50" and many.why is not None and "50,000" in many.why
    assert default_network("cpu", (224, 224), 855, at_hand=none).name == "small"


def test_the_choice_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dada.models.choice, "has_weights", none)
    monkeypatch.setattr(default_network, "__kwdefaults__", {"at_hand": none})
    images = torch.zeros(12, 3, 72, 72, dtype=torch.uint8)
    notes: list[str] = []
    dada.train((images, torch.arange(12) % 2), epochs=1, device="cpu", seed=0, on_note=notes.append)
    assert len(notes) == 1 and notes[0].startswith("network: small from scratch")

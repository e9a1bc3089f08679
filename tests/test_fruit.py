"""The drawn fruit: the same images everywhere, of every kind, and what is planted in them."""

from __future__ import annotations

import torch

from dada.data import fruit, is_grey, load


def test_ten_kinds_in_three_parts():
    split = load("fruit")
    assert split.classes == tuple(fruit.FRUIT) and split.num_classes == 10
    assert split.image_size == (24, 24) and split.channels == 3 and not is_grey(split)
    for name, part in split.parts.items():
        assert part.labels_N.bincount().tolist() == [fruit.PER_CLASS[name]] * 10


def test_it_is_always_the_same_and_no_image_comes_twice():
    first, second = fruit.fruit(), fruit.fruit()
    whole = []
    for name, part in first.parts.items():
        images = torch.from_numpy(part.images_NCHW)
        assert torch.equal(images, torch.from_numpy(second.parts[name].images_NCHW))
        whole.append(images.flatten(1))
    assert len(torch.unique(torch.cat(whole), dim=0)) == sum(map(len, whole))


def test_the_planted_ones_are_negatives_of_these():
    plain, planted = load("fruit"), load("fruit-negatives")
    for name, part in plain.parts.items():
        index = torch.arange(len(part))
        ours, theirs = part.batch(index)[0], planted.parts[name].batch(index)[0]
        assert torch.equal(ours if name == "train" else 255 - ours, theirs)


def test_a_pair_differs_in_colour():
    """The mean colour of a lime is greener than a lemon's: what Invert or Color would destroy."""
    split = load("fruit")
    mean = {}
    for kind in ("lemon", "lime"):
        index = torch.nonzero(split.test.labels_N == split.classes.index(kind))[:, 0]
        middle = split.test.batch(index)[0][:, :, 9:15, 9:15].float()
        mean[kind] = (middle[:, 0] / middle[:, 1].clamp(min=1)).mean().item()  # red by green
    assert mean["lemon"] > 1.1 * mean["lime"]

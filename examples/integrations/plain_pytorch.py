"""A policy in a plain PyTorch loop: one line before the forward pass.

    python examples/integrations/plain_pytorch.py --policy runs/photos

Trains on the built-in digits. `--policy` is a policy file, a run directory or a name.
Letters: B images, C channels, H height, W width.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import dada
from dada.data import load


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="trivialaugment")
    parser.add_argument("--quick", action="store_true", help="a few passes only")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)  # the policy's draws follow torch's generator, so they repeat too

    digits = load("digits")
    images_BCHW, labels_B = digits.train.batch(torch.arange(len(digits.train)))  # uint8
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten()),
        nn.Linear(64 * 4 * 4, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    augment = dada.Policy.load(options.policy).transform()

    model.train()
    for _ in range(4 if options.quick else 40):
        for rows in torch.randperm(len(labels_B)).split(64):
            x_BCHW = augment(images_BCHW[rows])  # uint8 in, uint8 out; every image its own draw
            x_BCHW = x_BCHW.float() / 255  # normalise after the policy, not before
            loss = F.cross_entropy(model(x_BCHW), labels_B[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    model.eval()
    assert digits.test is not None
    images_BCHW, labels_B = digits.test.batch(torch.arange(len(digits.test)))
    with torch.no_grad():
        right = model(images_BCHW.float() / 255).argmax(1) == labels_B
    accuracy = right.float().mean().item()
    print(f"{accuracy:.1%} of {len(labels_B)} test images")
    return accuracy


if __name__ == "__main__":
    main()

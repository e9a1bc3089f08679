"""A policy inside the training step: batches are augmented where they are trained on.

    python examples/integrations/gpu_batch.py --policy runs/photos

The images lie on the GPU as bytes. A call on a CUDA batch does not wait for the card, and from the
third batch of a shape on it replays a CUDA graph. Without a GPU the same code runs on the CPU.
Letters: B images of a batch, N of the data set, C channels, H height, W width.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F

import dada
from dada import models
from dada.data import load


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="trivialaugment")
    parser.add_argument("--quick", action="store_true", help="a few passes only")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    digits = load("digits")
    train_NCHW, labels_N = (x.to(device) for x in digits.train.batch(torch.arange(1297)))
    model = models.build("small", 10, 1, (8, 8), seed=0).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    augment = dada.Policy.load(options.policy).transform(seed=0)  # a generator on the device

    def step(images_BCHW: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
        images_BCHW = augment(images_BCHW).float() / 255  # on the device, no copy to the host
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(model(images_BCHW), labels_B)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(4 if options.quick else 40):
        for rows in torch.randperm(1297, device=device).split(64)[:-1]:  # one shape: one graph
            step(train_NCHW[rows], labels_N[rows])

    model.eval()
    assert digits.test is not None
    test_BCHW, labels_B = (x.to(device) for x in digits.test.batch(torch.arange(500)))
    with torch.no_grad():
        right = model(test_BCHW.float() / 255).argmax(1) == labels_B
    accuracy = right.float().mean().item()
    print(f"{accuracy:.1%} of 500 test images, on {device}")
    return accuracy


if __name__ == "__main__":
    main()

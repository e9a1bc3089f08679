"""A policy in the workers of a DataLoader: image by image, on the cores of a CPU.

    python examples/integrations/dataloader_cpu.py --policy runs/photos --workers 4

The place in a transform is after crop and flip, before the conversion to floating point.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import dada
from dada.data import Part, load


class Pictures(Dataset[tuple[Tensor, int]]):
    """PIL images and labels; torchvision.datasets.ImageFolder(root, transform) is used alike."""

    def __init__(self, part: Part, transform: v2.Transform) -> None:
        self.images_NCHW, self.labels_N = part.batch(torch.arange(len(part)))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels_N)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        picture = Image.fromarray(self.images_NCHW[i, 0].numpy())
        return self.transform(picture), int(self.labels_N[i])


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="trivialaugment")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a few passes only")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)  # repeats the run: the workers' draws follow from this seed as well

    plain = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.3], [0.37])]
    policy = dada.Policy.load(options.policy).transform()
    digits = load("digits")
    train = Pictures(digits.train, v2.Compose([v2.RandomCrop(8, padding=1), policy, *plain]))
    loader = DataLoader(train, 64, shuffle=True, num_workers=options.workers)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(5 if options.quick else 40):
        for images_BCHW, labels_B in loader:
            loss = F.cross_entropy(model(images_BCHW), labels_B)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    test = Pictures(digits.test or digits.train, v2.Compose(plain))  # no policy when judging
    right = torch.cat([model(x).argmax(1) == y for x, y in DataLoader(test, 500)])
    accuracy = right.float().mean().item()
    print(f"{accuracy:.1%} of {len(test)} test images")
    return accuracy


if __name__ == "__main__":
    main()

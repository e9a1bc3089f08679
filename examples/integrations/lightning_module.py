"""A policy in Lightning: `on_after_batch_transfer` augments each training batch on its device.

    pip install lightning
    python examples/integrations/lightning_module.py --policy runs/photos

Letters: B images, C channels, H height, W width.
"""

from __future__ import annotations

import argparse

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import dada
from dada import models
from dada.data import load


class Classifier(lightning.LightningModule):
    def __init__(self, policy: dada.Policy) -> None:
        super().__init__()
        self.model = models.build("small", 10, 1, (8, 8), seed=0)
        self.augment = policy.transform()

    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> list[Tensor]:
        images_BCHW, labels_B = batch
        if self.trainer.training:  # validation and test images stay as they are
            images_BCHW = self.augment(images_BCHW)
        return [images_BCHW.float() / 255, labels_B]

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def test_step(self, batch: list[Tensor]) -> None:
        self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="trivialaugment")
    parser.add_argument("--quick", action="store_true", help="a few passes only")
    options = parser.parse_args(arguments)
    lightning.seed_everything(0, verbose=False)

    digits = load("digits")
    assert digits.test is not None
    train, test = (
        TensorDataset(*p.batch(torch.arange(len(p)))) for p in (digits.train, digits.test)
    )
    epochs = 4 if options.quick else 40
    trainer = lightning.Trainer(
        max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    classifier = Classifier(dada.Policy.load(options.policy))
    trainer.fit(classifier, DataLoader(train, 64, shuffle=True))
    (scores,) = trainer.test(classifier, DataLoader(test, 500))
    return scores["accuracy"]


if __name__ == "__main__":
    main()

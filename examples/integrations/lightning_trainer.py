"""A policy in Lightning: in the module, or by a callback beside a module that knows nothing of it.

    pip install lightning
    python examples/integrations/lightning_trainer.py --policy runs/photos [--callback]

Images should be uint8, or floating point in 0..1, and not yet normalised when they are augmented.
Letters: B images, C channels, H, W sides.
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import dada
from dada import models
from dada.data import load


class Classifier(lightning.LightningModule):
    """Somebody's module, which knows nothing of policies."""

    def __init__(self) -> None:
        super().__init__()
        self.model = models.build("small", 10, 1, (8, 8), seed=0)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def test_step(self, batch: list[Tensor]) -> None:
        self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


class AugmentingClassifier(Classifier):
    """Where the module may be changed: each training batch is augmented on its device."""

    def __init__(self, policy: dada.Policy) -> None:
        super().__init__()
        self.augment = policy.transform()

    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> list[Tensor]:
        images_BCHW, labels_B = batch
        if self.trainer.training:  # validation and test images stay as they are
            images_BCHW = self.augment(images_BCHW)
        return [images_BCHW, labels_B]


class AugmentTraining(lightning.Callback):
    """Draws for every image of a training batch; validation and test images stay as they are."""

    def __init__(self, policy: dada.Policy) -> None:
        self.augment = policy.transform()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: list[Tensor], batch_idx: int
    ) -> None:
        batch[0].copy_(self.augment(batch[0]))  # a callback cannot return another batch


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="trivialaugment")
    parser.add_argument("--callback", action="store_true", help="beside the module, not in it")
    parser.add_argument("--quick", action="store_true", help="a few passes only")
    options = parser.parse_args(arguments)
    lightning.seed_everything(0, verbose=False)

    digits = load("digits")
    assert digits.test is not None
    parts = (p.batch(torch.arange(len(p))) for p in (digits.train, digits.test))
    train, test = (TensorDataset(images.float() / 255, labels) for images, labels in parts)
    policy = dada.Policy.load(options.policy)
    classifier = Classifier() if options.callback else AugmentingClassifier(policy)
    trainer = lightning.Trainer(
        max_epochs=4 if options.quick else 40,
        callbacks=[AugmentTraining(policy)] if options.callback else [],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(classifier, DataLoader(train, 64, shuffle=True))
    (scores,) = trainer.test(classifier, DataLoader(test, 500))
    return scores["accuracy"]


if __name__ == "__main__":
    main()

"""A policy with the Hugging Face Trainer: in the training data set, and not in the other.

    pip install transformers accelerate
    python examples/integrations/huggingface_trainer.py --policy runs/photos

A small vision transformer starts from nothing here; nothing is downloaded. With a data set of the
`datasets` package the same transform goes into `dataset.with_transform`.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import dada
from dada.data import Part, load


class Pictures(Dataset[dict[str, Any]]):
    def __init__(self, part: Part, policy: str) -> None:
        self.images_NCHW, self.labels_N = part.batch(torch.arange(len(part)))
        self.augment = dada.Policy.load(policy).transform()

    def __len__(self) -> int:
        return len(self.labels_N)

    def __getitem__(self, i: int) -> dict[str, Any]:
        image_CHW = self.augment(self.images_NCHW[i])
        return {"pixel_values": image_CHW.float() / 127.5 - 1, "labels": self.labels_N[i]}


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="trivialaugment")
    parser.add_argument("--quick", action="store_true", help="a few passes only")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    digits = load("digits")
    assert digits.test is not None
    shape = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
    size = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            ViTForImageClassification(ViTConfig(num_hidden_layers=2, **shape, **size)),
            TrainingArguments(
                folder,
                num_train_epochs=8 if options.quick else 60,
                per_device_train_batch_size=64,
                learning_rate=3e-3,
                dataloader_pin_memory=torch.cuda.is_available(),
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Pictures(digits.train, options.policy),
            eval_dataset=Pictures(digits.test, "none"),
            compute_metrics=accuracy,
        )
        trainer.train()
        return trainer.evaluate()["eval_accuracy"]


if __name__ == "__main__":
    print(f"{main():.1%} of the test images")

"""A policy in timm's loader, by the file that `dada export --to timm` writes.

    dada export runs/photos --to timm --out timm_policy.py
    python examples/integrations/timm_loader.py --policy-file timm_policy.py

`create_dataset` and `create_loader` are what timm's training script calls, too. One line after them
puts the policy behind crop and flip. Without --policy-file a shipped policy is exported first.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from PIL import Image
from timm.data import create_dataset, create_loader

import dada


def write_pictures(folder: Path) -> None:
    """Digits as RGB files, a folder for each class: stands for your own images."""
    images_NCHW, labels_N = dada.data.load("digits").train.batch(torch.arange(640))
    for i, (image_CHW, label) in enumerate(zip(images_NCHW, labels_N.tolist(), strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image_CHW[0].numpy()).convert("RGB").save(folder / str(label) / f"{i}.png")


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy-file", type=Path)
    parser.add_argument("--quick", action="store_true", help="a few passes only")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        write_pictures(Path(folder) / "train")
        exported = options.policy_file or Path(folder) / "timm_policy.py"
        if options.policy_file is None:
            exported.write_text(dada.Policy.load("dada-cifar10").export("timm"), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("timm_policy", exported)
        assert spec is not None and spec.loader is not None
        timm_policy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(timm_policy)  # in a script: from timm_policy import DadaPolicy

        loader = create_loader(
            create_dataset("", root=f"{folder}/train"),
            input_size=(3, 32, 32),
            batch_size=64,
            is_training=True,
            scale=(0.7, 1),
            color_jitter=None,  # the policy has its own
            num_workers=0,
            persistent_workers=False,
            use_prefetcher=torch.cuda.is_available(),
        )
        loader.dataset.transform.transforms.insert(2, timm_policy.DadaPolicy())
        print(loader.dataset.transform)

        model = timm.create_model("test_resnet", num_classes=10)
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        right: list[float] = []
        for _ in range(3 if options.quick else 30):
            right.clear()
            for images_BCHW, labels_B in loader:
                logits_BC = model(images_BCHW)
                optimizer.zero_grad()
                F.cross_entropy(logits_BC, labels_B).backward()
                optimizer.step()
                right.append((logits_BC.argmax(1) == labels_B).float().mean().item())
    accuracy = sum(right) / len(right)
    print(f"{accuracy:.1%} of the augmented training images in the last pass")
    return accuracy


if __name__ == "__main__":
    main()

"""Folders of images with boxes or masks, as a stranger may have written them."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path

import torch

from dada.data import load

from .cases import FaultError, Fuzzer, accepted, check_line
from .mutations import anything, damaged_bytes, damaged_json, text

sys.path.insert(0, str(Path(__file__).parents[1]))
from scenes import WRITERS, Scenes


class Annotations(Fuzzer):
    name = "annotations"
    what = "one file of a COCO, VOC, YOLO or mask folder is damaged, or becomes a pipe or a loop"
    full, quick = 2_000, 40
    seconds = 20

    def prepare(self) -> None:
        scenes = Scenes(4, 0)
        self.whole = self.folder / "whole"
        for form, write in WRITERS.items():
            write(self.whole / form, scenes)

    def case(self, noise: random.Random) -> None:
        form = noise.choice(sorted(os.listdir(self.whole)))
        root = self.folder / "given"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.whole / form, root)
        files = sorted(file for file in root.rglob("*") if file.is_file())
        said = [file for file in files if file.parent.name not in ("images", "JPEGImages")]
        self._damage(noise.choice(said if noise.random() < 0.9 else files), noise)
        task = noise.choice([None, "detection", "segmentation"])

        def read() -> list[str]:
            split = load(root, task=task)
            for part in split.parts.values():
                batch = torch.arange(len(part))
                part.batch(batch)
                for target in part.targets:
                    if len(target) != len(part) or not torch.isfinite(target.float()).all():
                        raise FaultError("targets that are not finite, or not one for each image")
            return split.notes

        read_through, notes = accepted(read)
        for note in notes if read_through else ():
            check_line(note)

    def _damage(self, file: Path, noise: random.Random) -> None:
        doing = noise.random()
        if doing < 0.05:
            file.unlink()
            noise.choice([os.mkfifo, os.mkdir, lambda name: os.symlink(name, name)])(file)
        elif file.suffix == ".json" and doing < 0.8:
            file.write_bytes(damaged_json(json.loads(file.read_text()), noise))
        elif file.suffix in (".txt", ".xml", ".yaml") and doing < 0.7:
            said = file.read_text().replace("<", " <").replace(">", "> ").split(" ")
            said[noise.randrange(len(said))] = noise.choice([text(noise), str(anything(noise, 0))])
            file.write_bytes(" ".join(said).encode("utf-8", "surrogatepass"))
        else:
            file.write_bytes(damaged_bytes(file.read_bytes(), noise))

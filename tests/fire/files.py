"""Files that a stranger may have written: policies, imports, data, run directories, checkpoints."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import random
import shutil
import zipfile
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_of

import dada
from dada.data import load
from dada.exchange.imports import import_policy
from dada.models.weights import from_file
from dada.policy import Policy, baselines
from dada.policy.space import SPACES
from dada.report import write_report
from dada.runlog import RunLog

from .cases import FaultError, Fuzzer, accepted, command
from .mutations import anything, damaged_bytes, damaged_json, text


class Policies(Fuzzer):
    name = "policies"
    what = "a damaged policy file is read; what loads is saved and loaded again, equal"
    full, quick = 1_000_000, 300

    def prepare(self) -> None:
        made = [
            Policy.load("dada-cifar10"),
            Policy.load("randaugment:2,0.5"),
            Policy(()),
            baselines.uniform(SPACES["strength"]),
        ]
        self.contents = []
        for policy in made:
            content = json.loads(policy.to_json())
            content["subpolicies"] = content["subpolicies"][:3]
            for row in content["subpolicies"]:
                row["weight"] = 1 / len(content["subpolicies"])
            content["provenance"] = {"name": "x", "data": {"classes": 3}, "seed": 0}
            self.contents.append(content)
        self.file = self.folder / "policy.json"

    def case(self, noise: random.Random) -> None:
        self.file.write_bytes(damaged_json(noise.choice(self.contents), noise))
        read, policy = accepted(lambda: Policy.load(self.file))
        if not read:
            return
        try:
            again = Policy.from_json(policy.to_json())
            policy.describe(), policy.op_probabilities()
        except Exception as error:
            raise FaultError(f"loaded, but {type(error).__name__}: {error}"[:300]) from error
        if again != policy or again.provenance != policy.provenance:
            raise FaultError("loaded, saved and loaded again it is another policy")


ROTATE = {"__class_fullname__": "Rotate", "limit": [-30, 30], "p": 0.5, "interpolation": 0}
BRIGHT = {"__class_fullname__": "RandomBrightnessContrast", "brightness_limit": [-0.2, 0.2], "p": 1}
FORMATS: list[tuple[str, Any]] = [
    ("torchvision", [[["ShearX", 0.9, 4], ["Invert", 0.2, None]]]),
    ("torchvision", [[["Posterize", 0.4, 8], ["Rotate", 0.6, 9]]]),
    ("timm", [[["PosterizeOriginal", 0.4, 8], ["Rotate", 0.6, 9]]]),
    ("timm", "rand-m9-mstd0.5-inc1"),
    (
        "albumentations",
        {
            "__version__": "2.0.8",
            "transform": {
                "__class_fullname__": "Compose",
                "p": 1.0,
                "transforms": [
                    {"__class_fullname__": "OneOf", "p": 0.5, "transforms": [ROTATE, BRIGHT]},
                    {"__class_fullname__": "HorizontalFlip", "p": 0.5},
                ],
            },
        },
    ),
]


class Imports(Fuzzer):
    name = "imports"
    what = "a damaged file of torchvision, timm or Albumentations is imported"
    full, quick = 100_000, 200

    def prepare(self) -> None:
        exported = json.loads(Policy.load("dada-svhn").export("albumentations"))
        self.formats = [*FORMATS, ("albumentations", exported)]
        self.file = self.folder / "theirs.json"

    def case(self, noise: random.Random) -> None:
        source, content = noise.choice(self.formats)
        self.file.write_bytes(damaged_json(content, noise))
        if isinstance(content, str) and noise.random() < 0.5:  # a name, as a person types it
            name = damaged_bytes(content.encode(), noise).decode("latin-1")
            name = name.replace("/", "").replace("\0", "")
            command("import", f"r{name}", "--from", source, "--out", str(self.file), "--force")
            return
        name = str(self.file)
        read, policy = accepted(lambda: import_policy(name, source))
        if read and Policy.from_json(policy.to_json()) != policy:
            raise FaultError("imported, saved and loaded it is another policy")


class Data(Fuzzer):
    name = "archives and csv"
    what = "a damaged .npz, .npy, .csv or CIFAR file is loaded, and what loads is read through"
    full, quick = 10_000, 60

    def prepare(self) -> None:
        noise = np.random.default_rng(0)
        images = noise.integers(0, 255, (8, 6, 6, 3)).astype(np.uint8)
        labels = np.arange(8) % 2
        self.arrays = {"images": images, "labels": labels}
        pictures = self.folder / "pictures"
        pictures.mkdir(exist_ok=True)
        from PIL import Image

        for i, image in enumerate(images):
            Image.fromarray(image).save(pictures / f"{i}.png")
        self.rows = [f"pictures/{i}.png,{'ab'[i % 2]}" for i in range(8)]
        self.cifar = self.folder / "cifar-100-python"
        self.cifar.mkdir(exist_ok=True)
        pixels = noise.integers(0, 255, (4, 3072)).astype(np.uint8)
        part = pickle.dumps({b"data": pixels, b"fine_labels": [0, 1, 0, 1]}, 2)
        self.pickles = {"train": part, "test": part}
        self.pickles["meta"] = pickle.dumps({b"fine_label_names": [b"a", b"b"]}, 2)

    def _npz(self, noise: random.Random) -> bytes:
        held: dict[str, Any] = dict(self.arrays)
        name = noise.choice(list(held))
        doing = noise.randrange(7)
        if doing == 0:
            held[name] = held[name].astype(noise.choice(["f8", "i8", "U4", "bool", "c16", "f2"]))
        elif doing == 1:
            shape = noise.choice([(8,), (0,), (8, 6), (1, 8, 6, 6, 3), (4,), ()])
            held[name] = np.zeros(shape, noise.choice([np.uint8, np.float64]))
        elif doing == 2:
            held[noise.choice(["x", "images", "test_images", "a/../b"])] = held.pop(name)
        elif doing == 3:
            held["labels"] = np.array([anything(noise, 0) for _ in range(8)], dtype=object)
        elif doing == 4:
            held["images"] = held["images"] * np.float32("nan")
        buffer = io.BytesIO()
        with contextlib.suppress(ValueError, OverflowError):
            noise.choice([np.savez, np.savez_compressed])(buffer, **held)
        raw = buffer.getvalue()
        return damaged_bytes(raw, noise) if noise.random() < 0.6 else raw

    def _csv(self, noise: random.Random) -> bytes:
        rows = ["path,label", *self.rows]
        for _ in range(noise.choice((1, 2, 4))):
            where = noise.randrange(len(rows))
            cell = noise.choice([text(noise), "pictures", "/dev/zero", "/proc/self/mem", "a,b,c"])
            rows[where] = noise.choice([cell, f"{cell},a", f"{rows[where]},{cell}", f'"{cell}'])
        raw = "\n".join(rows).encode("utf-8", "surrogatepass")
        return damaged_bytes(raw, noise) if noise.random() < 0.3 else raw

    def _damage_cifar(self, noise: random.Random) -> None:
        for name, raw in self.pickles.items():
            (self.cifar / name).write_bytes(raw)
        name = noise.choice([*self.pickles])
        raw = self.pickles[name]
        if noise.random() < 0.3:  # a whole pickle of something else
            held = pickle.loads(raw)
            held[noise.choice([*held])] = anything(noise)
            raw = pickle.dumps(held, noise.randrange(5))
        else:
            raw = damaged_bytes(raw, noise)
        (self.cifar / name).write_bytes(raw)

    def case(self, noise: random.Random) -> None:
        kind = noise.choice([".npz", ".npz", ".csv", "cifar"])
        if kind == "cifar":
            self._damage_cifar(noise)
            self._read_through(f"cifar100:{self.folder}")
            return
        raw = self._npz(noise) if kind == ".npz" else self._csv(noise)
        if kind == ".npz" and noise.random() < 0.1:  # an array under the name of an archive
            buffer = io.BytesIO()
            np.save(buffer, self.arrays["images"])
            raw = buffer.getvalue()
        file = self.folder / f"data{kind}"
        file.write_bytes(raw)
        self._read_through(str(file))

    def _read_through(self, source: str) -> None:
        def read() -> None:
            split = load(source)
            for part in split.parts.values():
                part.batch(torch.arange(len(part)))

        accepted(read)


class RunFiles(Fuzzer):
    name = "run files"
    what = "one file of a run directory is damaged; it is reported, shown and resumed"
    full, quick = 5_000, 12

    def prepare(self) -> None:
        images = torch.randint(0, 255, (24, 1, 8, 8), dtype=torch.uint8)
        self.data = (images, torch.arange(24) % 2)
        self.settings: dict[str, Any] = {"epochs": 1, "batch_size": 8, "device": "cpu"}
        self.settings["model"] = "small"
        self.whole = self.folder / "whole"
        shutil.rmtree(self.whole, ignore_errors=True)
        dada.search(self.data, out=self.whole, lookahead=0, **self.settings)
        self.names = sorted(file.name for file in self.whole.iterdir() if file.is_file())

    def case(self, noise: random.Random) -> None:
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self.whole, run)
        if noise.random() < 0.4:  # as if it had been killed at the end
            (run / "finished.json").unlink()
        file = run / noise.choice([name for name in self.names if (run / name).exists()])
        if noise.random() < 0.5 and file.suffix in (".json", ".jsonl"):
            content = (
                json.loads(file.read_text().splitlines()[0]) if file.suffix == ".jsonl" else {}
            )
            content = content or json.loads(file.read_text())
            file.write_bytes(damaged_json(content, noise) + b"\n")
        else:
            file.write_bytes(damaged_bytes(file.read_bytes(), noise))
        doing = noise.randrange(3)
        if doing == 0:
            accepted(lambda: write_report(run))
        elif doing == 1:
            accepted(lambda: Policy.load(run))
        else:
            accepted(
                lambda: dada.search(self.data, out=run, resume=True, lookahead=0, **self.settings)
            )


class Checkpoints(Fuzzer):
    name = "checkpoints"
    what = "a damaged checkpoint is refused or gives one of the two states that were saved"
    full, quick = 1_000, 30

    def prepare(self) -> None:
        self.states = [{"step": i, "weights": torch.arange(50.0) + i} for i in range(2)]
        self.whole = self.folder / "whole"
        shutil.rmtree(self.whole, ignore_errors=True)
        run = RunLog(self.whole)
        for state in self.states:
            run.log(step=state["step"])
            run.checkpoint(state)
        run.close()

    def case(self, noise: random.Random) -> None:
        path = self.folder / "run"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.whole, path)
        names = ["checkpoint.pt", "checkpoint.previous.pt"]
        for name in names if noise.random() < 0.3 else [noise.choice(names)]:
            file = path / name
            raw = file.read_bytes()
            file.write_bytes(
                self._pickled(noise) if noise.random() < 0.1 else damaged_bytes(raw, noise)
            )
        with contextlib.closing(RunLog(path, resume=True)) as run:
            read, state = accepted(run.restore)
        if (self.folder / "pwned").exists():
            raise FaultError("code of a checkpoint ran")
        if read and not any(
            state is not None
            and state["step"] == known["step"]
            and torch.equal(state["weights"], known["weights"])
            for known in self.states
        ):
            raise FaultError("a state that was never saved")

    def _pickled(self, noise: random.Random) -> bytes:
        """An archive as torch writes it, whose pickle would make a file."""
        target = self.folder / "pwned"
        code = f"cposix\nsystem\n(Vtouch {target}\ntR.".encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("archive/data.pkl", code)
            archive.writestr("archive/version", "3\n")
        return buffer.getvalue()


class WeightFiles(Fuzzer):
    name = "weights"
    what = "damaged weights, or what a run says of them, are read; what is read are plain numbers"
    full, quick = 1_000, 30

    def prepare(self) -> None:
        self.run_folder = self.folder / "trained"
        self.run_folder.mkdir(exist_ok=True)
        tensors = {f"layer{i}.weight": torch.arange(12.0).reshape(3, 4) + i for i in range(3)}
        tensors["steps"] = torch.tensor(7)
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        self.torch_file = buffer.getvalue()
        self.safetensors = safetensors_of(tensors)
        self.about = {"model": "small", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]}

    def case(self, noise: random.Random) -> None:
        weights, about = self.run_folder / "model.safetensors", self.run_folder / "model.json"
        raw = noise.choice([self.safetensors, self.torch_file])
        weights.write_bytes(damaged_bytes(raw, noise) if noise.random() < 0.7 else raw)
        about.write_bytes(damaged_json(self.about, noise))
        read, found = accepted(lambda: from_file(self.run_folder, None))
        if not read:
            return
        _, weights_read = found
        for each in weights_read.tensors.values():
            if each.numel() > 10**6 or each.layout is not torch.strided:
                raise FaultError(
                    f"a tensor of {tuple(each.shape)} out of a file of {len(raw)} bytes"
                )
        accepted(lambda: (weights_read.digest, weights_read.normalisation(3)))


__all__ = ["Checkpoints", "Data", "Imports", "Policies", "RunFiles", "WeightFiles"]

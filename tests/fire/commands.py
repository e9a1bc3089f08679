"""Images and options, through the command itself."""

from __future__ import annotations

import io
import os
import random
import shutil
from contextlib import ExitStack, chdir
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

from .cases import FaultError, Fuzzer, command
from .mutations import HOSTILE, damaged_bytes

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(pwned) run\n"


class Images(Fuzzer):
    name = "images"
    what = "damaged image files go through `dada show`, `dada apply` and `dada search`"
    full, quick = 5_000, 9

    def prepare(self) -> None:
        noise = np.random.default_rng(0)
        image = Image.fromarray(noise.integers(0, 255, (12, 10, 3)).astype(np.uint8))
        self.formats: dict[str, bytes] = {}
        for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM"):
            buffer = io.BytesIO()
            image.save(buffer, kind)
            self.formats[kind] = buffer.getvalue()
        self.photos = self.folder / "photos"
        shutil.rmtree(self.photos, ignore_errors=True)
        for name in ("a", "b"):
            (self.photos / name).mkdir(parents=True)
            for i in range(6):
                image.rotate(90 * i).save(self.photos / name / f"{i}.png")

    def case(self, noise: random.Random) -> None:
        raw = noise.choice(list(self.formats.values()))
        doing = noise.random()
        if doing < 0.8:
            for _ in range(noise.choice((1, 1, 3))):
                raw = damaged_bytes(raw, noise)
        elif doing < 0.85:
            raw = EPS
        suffix = noise.choice([".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".webp", ".ppm"])
        doing = noise.randrange(3)
        if doing == 0:
            file = self.folder / f"one{suffix}"
            file.write_bytes(raw)
            (self.folder / "one-augmented.png").unlink(missing_ok=True)
            with chdir(self.folder):  # the sheet is written to the working directory
                command("show", "dada-cifar10", "--image", str(file))
            return
        file = self.photos / "a" / f"hostile{suffix}"
        file.write_bytes(raw)
        try:
            self._folder(doing == 1)
        finally:
            file.unlink()

    def _folder(self, apply: bool) -> None:
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        if apply:
            command("apply", "dada-cifar10", str(self.photos), str(out))
        else:
            options = ["--epochs", "1", "--batch-size", "4", "--image-size", "8", "--device", "cpu"]
            line = ["search", str(self.photos), "--lookahead", "0", "--verify-budget", "0"]
            command(*line, *options, "--model", "small", "--out", str(out))


class BegunError(BaseException):
    """Every setting was accepted: the first step would come next."""


VALUES = [
    *("0", "-1", "1", "2", "8", "0.5", "1e-9", "1e9", "1e400", "nan", "inf", "-inf", "NaN", "1_0"),
    *("99999999999999999999", "9" * 400, "0x10", "١٢", "", " ", "auto", "none", "None", "cpu"),
    *("uniform", "dada", "paper", "accuracy", "Invert", "Invert,Invert", ",", ",,,", "a=b", "~"),
    *("digits", "no/such", "/dev/null", "/dev/zero", "/", ".", "small", "os:system", "timm:", ":"),
    *("uniform,none", "randaugment:2,0.5", "randaugment:0,9", "randaugment:x,y", "cuda:99", "mps"),
    *(text for text in HOSTILE if "\0" not in text and "\ud800" not in text and len(text) < 200),
]


class Options(Fuzzer):
    name = "options"
    what = "random options and values; a refusal leaves no run directory begun"
    full, quick = 2_000, 20

    def prepare(self) -> None:
        import typer

        from dada.terminal.commands import app

        group: Any = typer.main.get_command(app)
        self.options = {
            name: [p for p in sub.params if p.param_type_name == "option" and p.name != "help"]
            for name, sub in group.commands.items()
            if name not in ("doctor", "report")
        }
        self.arguments = {
            name: sum(p.param_type_name == "argument" for p in sub.params)
            for name, sub in group.commands.items()
        }

    def case(self, noise: random.Random) -> None:
        name = noise.choice(["search", "train", "compare"] * 4 + list(self.options))
        inside = self.folder / "inside"
        shutil.rmtree(inside, ignore_errors=True)
        inside.mkdir()
        line = [name]
        if name in ("search", "train", "compare"):
            line += [noise.choice(["digits"] * 9 + VALUES)]
        else:
            line += [noise.choice(["dada-cifar10", *VALUES]) for _ in range(self.arguments[name])]
        known = self.options[name]
        for option in noise.sample(known, min(noise.randrange(1, 5), len(known))):
            if option.is_flag:
                line.append(noise.choice([*option.opts, *option.secondary_opts]))
            else:
                line += [option.opts[0], noise.choice(VALUES)]
        before = os.getcwd()
        os.chdir(inside)
        try:
            self._typed(line)
        finally:
            os.chdir(before)

    def _typed(self, line: list[str]) -> None:
        def begin(*_: object, **__: object) -> None:
            raise BegunError

        steps = (
            "searching.find_policy",
            "verifying.verify_searched",
            "training.run_job",
            "run_comparison",
        )
        with ExitStack() as patched:
            for step in steps:
                patched.enter_context(patch(f"dada.api.{step}", begin))
            try:
                code, _ = command(*line)
            except BegunError:
                return
        begun = [file for file in os.listdir(".") if file != "policy.json"]
        runs = line[0] in ("search", "train", "compare")
        if code == 2 and runs and any(_holds_run(name) for name in begun):
            raise FaultError(f"refused, but it left {begun[:3]}: {line}")


def _holds_run(name: str) -> bool:
    return any("run.json" in files for _, _, files in os.walk(name))


__all__ = ["Images", "Options"]

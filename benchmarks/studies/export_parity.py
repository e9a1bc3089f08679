"""How near every exported operation is to Pillow, in the real libraries.

python benchmarks/studies/export_parity.py [--check] [--only TARGET ...]

Measures the targets whose library is installed, keeps the earlier rows of the others, and writes
benchmarks/results/export_parity.json and the tables of docs/export.md. `--check` only compares the
tables with the results.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dada.exchange.exports import TARGETS
from dada.exchange.exports.physical_policy import PhysicalOp, PhysicalPolicy, known_name
from dada.ops.pillow import CALLS
from dada.policy.space import SPACES

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "export_parity.json"
DOCS = ROOT / "docs" / "export.md"
START, END = "<!-- parity table -->\n", "<!-- end -->"
PACKAGES = {
    "torchvision": "torchvision",
    "timm": "timm",
    "albumentations": "albumentations",
    "kornia": "kornia",
    "dali": "nvidia-dali-cuda120",
    "mmpretrain": "mmpretrain",
    "ultralytics": "ultralytics",
    "rfdetr": "rfdetr",
}
VALUES = (0.0, 0.13, 0.31, 0.69, 0.87, 1.0)  # of an operation's range
GEOMETRIC = ("Shear", "Translate", "Rotate")
Runner = Callable[[list[np.ndarray]], list[np.ndarray]]


def load_module(text: str, name: str) -> Any:
    """An exported .py as a module of its own; from a file, as its user would have it."""
    folder = tempfile.mkdtemp()
    path = Path(folder) / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _tensor(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image.copy()).permute(2, 0, 1)


def torchvision_runner(text: str) -> Runner:
    """Tensors; the tests check PIL images as well."""
    transform = load_module(text, "exported_torchvision").DadaPolicy()
    return lambda images: [
        transform(_tensor(image)).permute(1, 2, 0).contiguous().numpy() for image in images
    ]


def timm_runner(text: str) -> Runner:
    transform = load_module(text, "exported_timm").DadaPolicy()
    return lambda images: [np.asarray(transform(Image.fromarray(image))) for image in images]


def albumentations_runner(text: str) -> Runner:
    import albumentations

    transform = albumentations.from_dict(json.loads(text))
    return lambda images: [transform(image=image)["image"] for image in images]


def kornia_runner(text: str) -> Runner:
    module = load_module(text, "exported_kornia").DadaPolicy()

    def run(images: list[np.ndarray]) -> list[np.ndarray]:
        done = [module(_tensor(image)[None].float() / 255)[0] for image in images]
        return [(one * 255).round().byte().permute(1, 2, 0).numpy() for one in done]

    return run


def dali_runner(text: str) -> Runner:
    """DALI's CPU backend; a pipeline is made for as many images as it is first given."""
    from nvidia.dali import fn, pipeline_def

    module = load_module(text, "exported_dali")
    made: list[Any] = []
    fed: list[np.ndarray] = []

    def run(images: list[np.ndarray]) -> list[np.ndarray]:
        fed[:] = images
        if not made:

            @pipeline_def(
                batch_size=len(images), num_threads=1, device_id=None, enable_conditionals=True
            )
            def pipeline() -> Any:
                source = fn.external_source(
                    source=lambda info: fed[info.idx_in_batch], batch=False, layout="HWC"
                )
                return module.dada_policy(source)

            made.append(pipeline(seed=0, prefetch_queue_depth=1))
            made[0].build()
        (output,) = made[0].run()
        return [np.array(output[i]) for i in range(len(images))]

    return run


def mmpretrain_runner(text: str) -> Runner:
    import mmpretrain.datasets.transforms  # noqa: F401 (registers them)
    from mmcv.transforms import Compose
    from mmengine.config import Config
    from mmpretrain.registry import TRANSFORMS

    path = Path(tempfile.mkdtemp()) / "exported_mmpretrain.py"
    path.write_text(text, encoding="utf-8")
    steps = Config.fromfile(path).dada_policy
    pipeline = Compose([TRANSFORMS.build(step) for step in steps])

    def run(images: list[np.ndarray]) -> list[np.ndarray]:
        backwards = [np.ascontiguousarray(image[..., ::-1]) for image in images]
        return [pipeline({"img": image})["img"][..., ::-1] for image in backwards]

    return run


def ultralytics_runner(text: str) -> Runner:
    """By its own class, which is given BGR."""
    from ultralytics.data.augment import Albumentations
    from ultralytics.utils.instance import Instances

    transform = Albumentations(transforms=load_module(text, "exported_ultralytics").augmentations)

    def one(image: np.ndarray) -> np.ndarray:
        boxes = Instances(np.zeros((0, 4), np.float32), np.zeros((0, 1000, 2), np.float32))
        backwards = np.ascontiguousarray(image[..., ::-1])
        done = transform({"img": backwards, "cls": np.zeros((0, 1)), "instances": boxes})
        return done["img"][..., ::-1]

    return lambda images: [one(image) for image in images]


def rfdetr_runner(text: str) -> Runner:
    from rfdetr.datasets.transforms import AlbumentationsWrapper

    config = load_module(text, "exported_rfdetr").aug_config
    steps = AlbumentationsWrapper.from_config(config, strict=True) if config else []

    def one(image: np.ndarray) -> np.ndarray:
        done, target = Image.fromarray(image), {"boxes": torch.zeros(0, 4), "labels": _NO_LABELS}
        for step in steps:
            done, target = step(done, target)
        return np.asarray(done)

    return lambda images: [one(image) for image in images]


_NO_LABELS = torch.zeros(0, dtype=torch.int64)


RUNNERS: dict[str, Callable[[str], Runner]] = {
    "torchvision": torchvision_runner,
    "timm": timm_runner,
    "albumentations": albumentations_runner,
    "kornia": kornia_runner,
    "dali": dali_runner,
    "mmpretrain": mmpretrain_runner,
    "ultralytics": ultralytics_runner,
    "rfdetr": rfdetr_runner,
}


def pictures() -> dict[str, list[np.ndarray]]:
    """Noise and a photograph, square and not."""
    from sklearn.datasets import load_sample_image

    photo = np.asarray(load_sample_image("china.jpg"))
    noise = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    square = [noise[0, :32, :32].copy(), noise[1], photo[100:164, 200:264].copy()]
    return {"square": square, "not square": [noise[0, :48].copy(), photo[60:124, 300:396].copy()]}


def expected(op: str, image: np.ndarray, value: float, got: np.ndarray) -> np.ndarray:
    """Pillow's result; Cutout's place is random, so it is taken from where the result differs."""
    center = (0.0, 0.0)
    if op == "Cutout":
        y, x = np.nonzero((got != image).any(-1))
        half = value * image.shape[1] / 2 + 0.25  # anywhere in the pixel where the square begins
        center = (float(x.min()) + half, float(y.min()) + half) if len(x) else (half, half)
    return np.asarray(CALLS[op](Image.fromarray(image), value, center))


def single(op: str, value: float) -> PhysicalPolicy:
    step = PhysicalOp(op=op, probability=1.0, ranges=((value, value),))
    return PhysicalPolicy(weights=(1.0,), subpolicies=((step,),), title="one operation")


def values_of() -> dict[str, list[float]]:
    """For every operation of the spaces `paper` and `wide`, values over its range."""
    values: dict[str, list[float]] = {}
    for space in (SPACES["paper"], SPACES["wide"]):
        for op in space.ops:
            name = known_name(op)
            assert name is not None
            ends = [op.low + share * (op.high - op.low) for share in VALUES]
            values.setdefault(name, []).extend(ends if op.has_strength else [0.0])
    return {name: values[name] for name in CALLS}


def measure(target: str) -> dict[str, dict[str, dict[str, float] | str]]:
    """Per operation and kind of picture: the worst over values and pictures."""
    rows: dict[str, dict[str, dict[str, float] | str]] = {}
    for op, values in values_of().items():
        rows[op] = {}
        for kind, images in pictures().items():
            try:
                rows[op][kind] = _worst(target, op, values, images)
            except ValueError as error:
                if "cannot be exported" not in str(error):
                    raise
                rows[op][kind] = "refused"
    return rows


def _worst(target: str, op: str, values: list[float], images: list[np.ndarray]) -> dict[str, float]:
    worst = {"max": 0.0, "mean": 0.0, "pixels": 0.0, "pixels_shifted": 0.0}
    for value in values:
        done = RUNNERS[target](TARGETS[target](single(op, value)))(images)
        for image, got in zip(images, done, strict=True):
            wanted = expected(op, image, value, got)
            difference = np.abs(got.astype(int) - wanted)
            worst["max"] = max(worst["max"], float(difference.max()))
            worst["mean"] = max(worst["mean"], float(difference.mean()))
            worst["pixels"] = max(worst["pixels"], float((difference.max(-1) > 0).mean()))
            worst["pixels_shifted"] = max(worst["pixels_shifted"], _after_shift(got, wanted))
    return {name: round(number, 4) for name, number in worst.items()}


def _after_shift(got: np.ndarray, wanted: np.ndarray) -> float:
    """The share of inner pixels that differ, when one image may be moved by one pixel."""
    inner = got[1:-1, 1:-1]
    h, w = inner.shape[:2]
    moved = [wanted[y : y + h, x : x + w] for y in range(3) for x in range(3)]
    return min(float((inner != other).any(-1).mean()) for other in moved)


def _cell(op: str, row: dict[str, float] | str) -> str:
    if isinstance(row, str):
        return row
    if row["max"] == 0:
        return "exact"
    if op.startswith((*GEOMETRIC, "Cutout")):
        shifted = f", moved by one {row['pixels_shifted']:.1%}" if row["pixels"] > 0.1 else ""
        return f"{row['pixels']:.1%} of pixels{shifted}"
    return f"{row['max']:.0f} (mean {row['mean']:.2f})"


def tables() -> str:
    content = json.loads(RESULTS.read_text())["targets"]
    names = [name for name in PACKAGES if name in content]
    head = " | ".join(f"{name} {content[name]['version']}" for name in names)
    text = ""
    for kind in ("square", "not square"):
        text += f"Images that are {kind}:\n\n| | {head} |\n|---|{'---|' * len(names)}\n"
        for op in CALLS:
            cells = " | ".join(_cell(op, content[name]["rows"][op][kind]) for name in names)
            text += f"| {op} | {cells} |\n"
        text += "\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when docs/export.md is stale")
    parser.add_argument("--only", choices=PACKAGES, nargs="*", default=list(PACKAGES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.check:
        content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"targets": {}}
        for target in arguments.only:
            package = PACKAGES[target]
            try:
                version = metadata.version(package)
            except metadata.PackageNotFoundError:
                print(f"{target}: {package} is not installed, its rows stay as they are")
                continue
            content["targets"][target] = {"version": version, "rows": measure(target)}
            print(f"{target} {version}: measured")
        content["pillow"] = metadata.version("pillow")
        RESULTS.write_text(json.dumps(content, indent=1) + "\n")
    text = DOCS.read_text()
    before, rest = text.split(START)
    fresh = before + START + tables() + END + rest.split(END, 1)[1]
    if arguments.check:
        sys.exit(f"{DOCS.name}: run python {__file__}" if fresh != text else 0)
    DOCS.write_text(fresh)
    print(tables())


if __name__ == "__main__":
    main()

"""Pictures of `dada explore` for the docs: the page in a browser, as somebody plays with it.

    python benchmarks/tools/explore_pictures.py        needs chromium and chromedriver; seconds

The pictures in the page are crops of the photographs that scikit-learn ships (CC BY).
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path

import numpy as np
from browser import Browser
from PIL import Image
from screenshots import IMAGES, check, few_colours

from dada.explorer import Server, open_explorer

DRAWN = "document.querySelectorAll('.draws img').length == 24"
EDITED = "document.querySelector('.edited').textContent == 'edited'"
# Rotate stronger and always, Invert off.
PLAY = """
for (const [key, value] of [["Rotate probability", 1], ["Rotate magnitude", 1]]) {
  const slider = document.querySelector(`input[type=range][data-key="${key}"]`);
  slider.value = value;
  slider.dispatchEvent(new Event("input"));
}
document.querySelector("input[type=checkbox][data-key=Invert]").click();
"""

CROPS, SIDE = 12, 96


def write_photos(folder: Path) -> None:
    """Square crops of two photographs, one folder for each."""
    from sklearn.datasets import load_sample_images

    random = np.random.default_rng(0)
    for name, pixels in zip(("temple", "flower"), load_sample_images().images, strict=True):
        photo = Image.fromarray(pixels)
        (folder / name).mkdir(parents=True)
        for i in range(CROPS):
            side = int(random.integers(100, 200))
            left = int(random.integers(0, photo.width - side))
            top = int(random.integers(0, photo.height - side))
            crop = photo.crop((left, top, left + side, top + side))
            crop.resize((SIDE, SIDE), Image.Resampling.LANCZOS).save(folder / name / f"{i:03d}.png")


def photograph(server: Server, file: Path, width: int, height: int, *, dark: bool = False) -> None:
    with Browser(width, height, dark=dark) as browser:
        browser.open(server.address)
        browser.wait(DRAWN)
        browser.run(PLAY)
        browser.wait(EDITED)
        browser.wait("[...document.images].every(image => image.complete)")
        browser.screenshot(file)
    with Image.open(file) as opened:
        few_colours(opened.convert("RGB")).save(file, optimize=True)
    check(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder for the pictures")
    target = parser.parse_args().out.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        photos = Path(scratch) / "photos"
        write_photos(photos)
        with open_explorer("dada-imagenet", str(photos)) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            photograph(server, target / "explore.png", 1280, 900)
            photograph(server, target / "explore-dark.png", 1280, 900, dark=True)
            photograph(server, target / "explore-phone.png", 390, 844)
            server.shutdown()


if __name__ == "__main__":
    main()

"""Is anything slower than it was? Loading, searching and transforming, beside another version.

    python benchmarks/speed/versions.py [--before COMMIT] [--rounds 7]

Both versions do the same work in processes of their own, in turn, so that whatever else the machine
does meets both. Seconds are those that the processor worked, on one thread; a ratio is the median
over the rounds of now / before, so 1.1 is a tenth slower.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from measure import RESULTS, machine, print_table

ROOT = Path(__file__).parents[2]
BEFORE = "07f70ee"  # the last before readers of strangers' files became strict

# Only names that both versions have.
WORK = """
import json, shutil, sys, time, warnings
import numpy as np, torch
from PIL import Image
warnings.simplefilter("ignore")
torch.set_num_threads(1)
import dada, dada.data
from dada import Policy

seconds = {}
def measure(name, work):
    begun = time.process_time(); work(); seconds[name] = time.process_time() - begun

def all_of(source):
    split = dada.data.load(source)
    split.train.batch(torch.arange(len(split.train)))

policy = Policy.load("dada-cifar10")
noise = np.random.default_rng(0)
small = [Image.fromarray(noise.integers(0, 255, (32, 32, 3), np.uint8)) for _ in range(100)]
large = [Image.fromarray(noise.integers(0, 255, (224, 224, 3), np.uint8)) for _ in range(20)]
transform = policy.transform(seed=0)
def search(epochs):
    dada.search("few.npz", model="small", device="cpu", epochs=epochs, batch_size=32,
                lookahead=0, verify=False)

# What is imported at the first use is not what is measured.
all_of("photos"), all_of("images.npz"), [transform(image) for image in small], search(1)
measure("load a folder of 600 images", lambda: all_of("photos"))
measure("load an .npz of 5,000 images", lambda: all_of("images.npz"))
measure("load 300 policy files", lambda: [Policy.load("policy.json") for _ in range(300)])
measure("transform 2,000 images of 32 px", lambda: [transform(i) for i in small for _ in range(20)])
measure("transform 200 images of 224 px", lambda: [transform(i) for i in large for _ in range(10)])
measure("search 400 images, 20 epochs", lambda: search(20))
print(json.dumps(seconds))
"""


def write_data(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    from dada import Policy

    noise = np.random.default_rng(0)
    images = noise.integers(0, 255, (5000, 32, 32, 3)).astype(np.uint8)
    labels = np.arange(5000) % 10
    np.savez(folder / "images.npz", images=images, labels=labels)
    np.savez(folder / "few.npz", images=images[:400, :12, :12], labels=labels[:400])
    for i, image in enumerate(images[:600]):
        place = folder / "photos" / str(labels[i])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i}.png")
    Policy.load("dada-imagenet").save(folder / "policy.json")


def seconds_of(source: Path, folder: Path) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WORK], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{source}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default=BEFORE, help="a commit")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_data(folder)
        old = folder / "before"
        old.mkdir()
        archive = subprocess.run(
            ["git", "archive", asked.before, "src"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x"], cwd=old, check=True, input=archive.stdout)
        rounds = []
        for number in range(asked.rounds):
            both = [seconds_of(source, folder) for source in (old / "src", ROOT / "src")]
            rounds.append(both)
            print(f"round {number + 1} of {asked.rounds}", flush=True)
    rows = []
    for name in rounds[0][0]:
        ratios = [now[name] / before[name] for before, now in rounds]
        low, ratio, high = statistics.quantiles(ratios, n=4)
        before, now = (statistics.median(both[i][name] for both in rounds) for i in (0, 1))
        rows.append(
            {"what": name, "before": before, "now": now, "ratio": ratio, "low": low, "high": high}
        )
    print_table(rows, ("what", "before", "now", "ratio", "low", "high"))
    result = {"before": asked.before, "rounds": asked.rounds, "rows": rows, "machine": machine()}
    (RESULTS / "versions.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

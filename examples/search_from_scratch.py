"""From a folder of images to a policy, and to the question whether it was worth it.

    python examples/search_from_scratch.py photos/            one subfolder for each class

Searches for a policy, trains one network with it and one with the free `uniform` policy for
several seeds, and prints the difference. Everything here is the public interface of `dada`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dada


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="one subfolder of images for each class")
    parser.add_argument("--model", help="default: a small one on a CPU, wrn40_2 on a GPU")
    parser.add_argument("--image-size", type=int, help="side to resize images to")
    parser.add_argument("--epochs", type=int, help="of the search and of every training")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each policy")
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--out", type=Path, default=Path("runs/from-scratch"))
    arguments = parser.parse_args()

    # 1. One pass over the images: which operations help, how often, how strongly.
    print(f"searching a policy for {arguments.folder} ...", flush=True)
    found = dada.search(
        str(arguments.folder),
        model=arguments.model,
        image_size=arguments.image_size,
        epochs=arguments.epochs,
        seed=arguments.seed,
        out=arguments.out / "search",
        resume=True,  # run it again after an interruption, and it goes on
    )
    print(f"found in {found.seconds:.0f} s; often done:")
    often = sorted(found.policy.op_probabilities().items(), key=lambda item: -item[1])
    for operation, share in often[:5]:
        print(f"  {operation:<14} {share:6.1%} of the images")

    # 2. The same network, the same seeds, once with this policy and once with the free one.
    print(f"training {2 * arguments.seeds} networks ...", flush=True)
    comparison = dada.compare(
        str(arguments.folder),
        [arguments.out / "search", "uniform"],
        seeds=arguments.seeds,
        model=arguments.model,
        image_size=arguments.image_size,
        epochs=arguments.epochs,
        out=arguments.out / "compare",
        resume=True,
        at_once=None,  # a core for every training
    )

    # 3. The answer, and the policy as a transform for training code of one's own.
    for row in comparison.policies:
        print(f"  {row.name:<40} {row.mean:6.2f}% correct")
    print(comparison.verdict)
    print(f"use it:  transform = dada.Policy.load({str(arguments.out / 'search')!r}).transform()")


if __name__ == "__main__":
    main()

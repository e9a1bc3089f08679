"""What can be done to an image: batched operations that give Pillow's bytes."""

from dada.ops.batch import NO_OP, apply, check_images, run
from dada.ops.spec import Op
from dada.ops.table import BY_NAME, PAPER, WIDE

__all__ = ["BY_NAME", "NO_OP", "PAPER", "WIDE", "Op", "apply", "check_images", "run"]

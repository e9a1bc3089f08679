"""What a network is trained for. The rest of the package asks a task, and never looks at its name.

base.py            what a task is asked
classification.py  one label for an image
multilabel.py      several labels or none
segmentation.py    a class for every pixel
detection.py       boxes, and masks of single objects; coco.py scores them
drawing.py         targets drawn on pictures
"""

from __future__ import annotations

from dada.safe_text import quoted
from dada.tasks.base import Task, TaskScores
from dada.tasks.classification import Classification, Scores
from dada.tasks.detection import Detection, DetectionScores
from dada.tasks.multilabel import Multilabel, MultilabelScores
from dada.tasks.segmentation import Segmentation, SegmentationScores

__all__ = [
    "TASKS",
    "DetectionScores",
    "MultilabelScores",
    "Scores",
    "SegmentationScores",
    "Task",
    "TaskScores",
    "named",
]

TASKS: dict[str, Task] = {
    task.name: task for task in (Classification(), Multilabel(), Segmentation(), Detection())
}


def named(name: str) -> Task:
    if name not in TASKS:
        raise ValueError(f"`task` should be one of {', '.join(TASKS)}, got {quoted(name)}")
    return TASKS[name]

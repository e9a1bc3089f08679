"""The libraries that a policy can be exported to: their names as `--to` takes them.

Below both `exchange`, which writes the files, and `report`, which shows the commands.
"""

from __future__ import annotations

EXPORT_TARGETS = ("torchvision", "timm", "albumentations", "kornia", "dali", "mmpretrain")

"""Policies in and out of other libraries, and augmented copies of a folder of images.

    exports/    a policy as a file that runs in another library, without this package
    imports/    a policy from another library's file; nothing in the file is run
    folder.py   a policy applied to the images of a folder

An export writes text and an import reads it, so none of those libraries has to be installed (but
torchvision's and timm's own policies, asked for by name, are read from the library).
"""

from __future__ import annotations

from dada.exchange.exports import export, export_file
from dada.exchange.folder import apply_to_folder
from dada.exchange.imports import import_file, import_policy

__all__ = ["apply_to_folder", "export", "export_file", "import_file", "import_policy"]

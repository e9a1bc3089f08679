"""Images with boxes and masks: every form gives the same targets, and bad ones are named."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dada.data import Split, load, split_off_validation
from dada.data.outlines import objects_map
from scenes import (
    WRITERS,
    Boxes,
    Masks,
    Scenes,
    coco_of,
    write_images,
    write_masks,
    write_objects,
    write_voc,
    write_yolo,
)

SCENES = Scenes(6, 3)


def boxes_of(split: Split) -> list[list[list[float]]]:
    found = split.train.targets[0]
    return [[row for row in image.tolist() if row[4] >= 0] for image in found]


def rows_of(images: list[list[list[float]]]) -> list[list[float]]:
    return [row for image in images for row in image]


WANTED = boxes_of(load(SCENES))


def noted(split: Split, words: str) -> bool:
    return any(words in note for note in split.notes)


@pytest.mark.parametrize("form", [form for form in WRITERS if form != "masks"])
def test_every_form_gives_the_same_boxes(form: str, tmp_path: Path) -> None:
    WRITERS[form](tmp_path, SCENES)
    split = load(tmp_path)
    assert split.task == "detection" and split.classes == ("lying", "upright")
    np.testing.assert_allclose(rows_of(boxes_of(split)), rows_of(WANTED), atol=1e-3)
    if len(split.train.targets) > 1:
        assert torch.equal(split.train.targets[1], load(SCENES).train.targets[1])


@pytest.mark.parametrize("form", ["masks", "polygons", "run lengths", "objects"])
def test_every_form_with_masks_gives_the_same_classes_of_pixels(form: str, tmp_path: Path) -> None:
    WRITERS[form](tmp_path, SCENES)
    split = load(tmp_path, task="segmentation")
    wanted = load(Masks(6, 3)).train.targets[0]
    assert torch.equal(split.train.targets[0], wanted) and split.num_classes == 3


def test_packed_run_lengths(tmp_path: Path) -> None:
    from pycocotools import mask

    content = coco_of(SCENES, "run lengths")
    for row in content["annotations"]:
        packed = mask.frPyObjects(row["segmentation"], *row["segmentation"]["size"])
        row["segmentation"] = {**packed, "counts": packed["counts"].decode()}
    write_images(tmp_path / "images", SCENES)
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    assert torch.equal(load(tmp_path).train.targets[1], load(SCENES).train.targets[1])


@pytest.mark.parametrize("form", ["coco", "masks", "yolo", "yolo-inside", "voc"])
def test_parts_in_folders(form: str, tmp_path: Path) -> None:
    for i, part in enumerate(("train", "val", "test")):
        own = Scenes(5 + i, i)
        if form == "yolo-inside":
            write_yolo(tmp_path, own, part)
        else:
            WRITERS[form](tmp_path / part, own)
    split = load(tmp_path)
    assert {name: len(part) for name, part in split.parts.items()} == {
        "train": 5,
        "val": 6,
        "test": 7,
    }


def test_vocs_lists_divide(tmp_path: Path) -> None:
    write_voc(tmp_path, SCENES)
    lists = tmp_path / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("000\n001 1\n002\n")
    (lists / "test.txt").write_text("004\nnone\n")
    split = load(tmp_path)
    assert len(split.train) == 3 and split.test is not None and len(split.test) == 1
    assert noted(split, "1 names in test.txt have no image and were left out: none")


def test_images_that_are_cropped_take_their_boxes_along(tmp_path: Path) -> None:
    """40 x 20 shown as 20 x 20 from the middle: a box there stays, one at the side goes."""
    pixels = np.zeros((20, 40, 3), np.uint8)
    image = Image.fromarray(pixels)
    boxes = torch.tensor([[15.0, 5, 25, 15], [0, 0, 9, 9], [8, 0, 12, 20]])
    target = {"boxes": boxes, "labels": torch.tensor([1, 1, 1])}
    split = load([(image, target), (image, target)], image_size=20)
    assert boxes_of(split)[0] == [[5, 5, 15, 15, 0], [0, 0, 2, 20, 0]]
    half = load([(image, target), (image, target)], image_size=10)
    assert boxes_of(half)[0] == [[2.5, 2.5, 7.5, 7.5, 0], [0, 0, 1, 10, 0]]


def test_a_polygon_takes_the_pixels_whose_centres_it_holds() -> None:
    found = objects_map((4, 5), [[[1, 1, 4, 1, 4, 3, 1, 3]], [[0, 0, 1.6, 0, 0, 1.6]]], "here")
    wanted = [[2, 0, 0, 0, 0], [0, 1, 1, 1, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 0]]
    assert found.tolist() == wanted


# --- bad ones -----------------------------------------------------------------------------------


def with_coco(tmp_path: Path, change: Any) -> Split:
    content = coco_of(SCENES)
    change(content)
    write_images(tmp_path / "images", SCENES)
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    return load(tmp_path)


BAD: dict[str, tuple[Any, str]] = {
    "zero size": (lambda row: row.update(bbox=[3, 3, 0, 5]), "1 boxes have no size"),
    "outside": (lambda row: row.update(bbox=[90, 3, 5, 5]), "1 boxes lie outside their image"),
    "beyond": (lambda row: row.update(bbox=[40, 40, 50, 5]), "1 boxes reach beyond their image"),
    "no numbers": (lambda row: row.update(bbox=[1, 2, "x", 4]), "1 boxes are not four numbers"),
    "infinite": (lambda row: row.update(bbox=[1, 2, 1e999, 4]), "1 boxes are not four numbers"),
    "no box": (lambda row: row.pop("bbox"), "1 boxes are not four numbers"),
    "no image": (lambda row: row.update(image_id=77), "1 annotations belong to no image"),
    "no category": (lambda row: row.update(category_id=5), "1 annotations are of no category"),
    "crowd": (lambda row: row.update(iscrowd=1), "1 annotations are crowds"),
}


@pytest.mark.parametrize("change, says", BAD.values(), ids=BAD)
def test_a_bad_annotation_is_named_and_the_others_are_kept(
    change: Any, says: str, tmp_path: Path
) -> None:
    split = with_coco(tmp_path, lambda content: change(content["annotations"][0]))
    assert noted(split, says), split.notes
    kept = len(rows_of(WANTED)) - (0 if "beyond" in says else 1)
    assert len(rows_of(boxes_of(split))) == kept and len(split.train) == 6


def test_images_that_are_missing_twice_or_empty(tmp_path: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["images"][0]["file_name"] = "gone.png"
        content["images"][1]["file_name"] = "../../etc/passwd"
        content["images"].append({**content["images"][2], "file_name": "003.png"})
        image = content["images"][4]["id"]
        rows = content["annotations"]
        content["annotations"] = [row for row in rows if row["image_id"] != image]

    split = with_coco(tmp_path, change)
    assert len(split.train) == 4
    assert noted(split, "2 images of the list are not there or broken, left out: gone.png")
    assert noted(split, "1 image ids are there twice, the first counts")
    assert noted(split, "1 images show no object and were kept")


@pytest.mark.parametrize(
    "content, says",
    [
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ('{"images": []}', "it has no list 'annotations'"),
        ('{"images": [], "annotations": [], "categories": []}', "no categories"),
        (
            '{"images": [{"id": 1}], "annotations": [], "categories": [{"id": 1}]}',
            "without 'file_name'",
        ),
        (
            '{"images": [], "annotations": [], "categories": [{"id": 1}, {"id": 1}]}',
            "category id 1 is there twice",
        ),
    ],
)
def test_a_file_that_is_not_cocos(content: str, says: str, tmp_path: Path) -> None:
    write_images(tmp_path / "images", SCENES)
    (tmp_path / "annotations.json").write_text(content)
    with pytest.raises(ValueError, match=says):
        load(tmp_path)


def test_an_xml_file_with_entities_is_refused(tmp_path: Path) -> None:
    write_voc(tmp_path, SCENES)
    laughs = '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;">]><annotation>&y;</annotation>'
    (tmp_path / "Annotations" / "000.xml").write_text(laughs)
    wide = laughs.encode("utf-16")
    (tmp_path / "Annotations" / "001.xml").write_bytes(wide)
    (tmp_path / "Annotations" / "002.xml").write_text("<annotation><object>")
    (tmp_path / "Annotations" / "003.xml").unlink()
    split = load(tmp_path)
    assert len(split.train) == 2
    assert noted(split, "2 XML files cannot be read (it declares a document type)")
    assert noted(split, "1 XML files cannot be read (no element found")
    assert noted(split, "1 images have no XML file and were left out")


def test_yolo_lines_that_are_none(tmp_path: Path) -> None:
    write_yolo(tmp_path, SCENES)
    text = "0 0.5 0.5 0.2 0.2\nzero 1 1 1 1\n1 0.5\n\n-1 0.5 0.5 0.1 0.1\n0 nan 0.5 0.1 0.1\n"
    (tmp_path / "labels" / "000.txt").write_text(text)
    split = load(tmp_path)
    assert noted(split, "3 lines are not `class x y width height`")
    assert noted(split, "1 boxes are not four numbers")
    assert len(boxes_of(split)[0]) == 1


def test_an_image_without_outlines_is_background(tmp_path: Path) -> None:
    write_yolo(tmp_path, SCENES)
    for file in (tmp_path / "labels").iterdir():
        file.write_text("0 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75\n")
    (tmp_path / "labels" / "000.txt").write_text("")
    masks_NHW = load(tmp_path, task="segmentation").train.targets[0]
    assert masks_NHW[0].max() == 0 and masks_NHW[1:].amax((1, 2)).tolist() == [1] * 5
    for file in (tmp_path / "labels").iterdir():
        file.write_text("0 0.5 0.5 2e9 inf\n")  # a box that is left out
    with pytest.raises(ValueError, match="segmentation needs masks or outlines"):
        load(tmp_path, task="segmentation")


def test_masks_that_are_none(tmp_path: Path) -> None:
    write_masks(tmp_path, SCENES)
    (tmp_path / "masks" / "000.png").unlink()
    assert noted(load(tmp_path), "1 images have no mask and were left out")
    Image.new("L", (5, 5)).save(tmp_path / "masks" / "001.png")
    with pytest.raises(ValueError, match="a mask of 5x5 pixels belongs to an image of 48x48"):
        load(tmp_path)
    Image.new("RGB", (48, 48)).save(tmp_path / "masks" / "001.png")
    with pytest.raises(ValueError, match=r"001.png: a mask must hold one whole number"):
        load(tmp_path)


def test_black_and_white_masks_are_two_classes(tmp_path: Path) -> None:
    write_images(tmp_path / "images", SCENES)
    (tmp_path / "masks").mkdir()
    for i in range(6):
        mask = Image.new("L", (48, 48))
        mask.paste(255, (4, 4, 20, 20))
        mask.save(tmp_path / "masks" / f"{i:03d}.png")
    split = load(tmp_path)
    assert split.num_classes == 2 and set(split.train.targets[0].unique().tolist()) == {0, 1}
    assert noted(split, "255 was taken for class 1")


def test_numbers_in_masks_are_objects_where_detection_is_asked_for(tmp_path: Path) -> None:
    write_objects(tmp_path, SCENES)
    (tmp_path / "boxes.json").unlink()
    split = load(tmp_path, task="detection")
    assert split.classes == ("object",)
    without_class = [[row[:4] for row in image] for image in WANTED]
    assert [[row[:4] for row in image] for image in boxes_of(split)] == without_class


def test_a_broken_image_is_left_out_with_its_boxes(tmp_path: Path) -> None:
    write_voc(tmp_path, SCENES)
    file = tmp_path / "JPEGImages" / "002.png"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"002.png"):
        load(tmp_path)
    split = load(tmp_path, skip_bad=True)
    assert boxes_of(split) == [boxes for i, boxes in enumerate(WANTED) if i != 2]


def test_python_items_that_do_not_fit() -> None:
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    one = {"boxes": torch.zeros(2, 4), "labels": torch.tensor([1])}
    with pytest.raises(ValueError, match="2 boxes, but 1 labels"):
        load([(image, one)] * 3)
    with pytest.raises(ValueError, match="no image has a box"):
        load([(image, {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0)})] * 3)
    with pytest.raises(ValueError, match="for detection, not for segmentation"):
        load(Boxes(4, 0), task="segmentation")


BOX = torch.tensor([[1.0, 1, 5, 5]])
ITEMS = {  # a second item that does not fit, and what is said of it
    "nan": (
        {"boxes": BOX, "labels": torch.tensor([math.nan])},
        "labels must be whole numbers, got nan",
    ),
    "inf": ({"boxes": BOX, "labels": [math.inf]}, "labels must be whole numbers, got inf"),
    "half": ({"boxes": BOX, "labels": np.array([1.5])}, "labels must be whole numbers, got 1.5"),
    "word": ({"boxes": BOX, "labels": ["cat"]}, "labels must be whole numbers, got 'cat'"),
    "rows": ({"boxes": BOX, "labels": [[1], [1, 2]]}, "rows of labels differ in length"),
    "five": ({"boxes": torch.zeros(5), "labels": [1]}, "boxes must be rows of x0, y0, x1, y1"),
    "ragged": ({"boxes": [[1, 2, 3, 4], [1]], "labels": [1, 1]}, "rows of boxes differ in length"),
    "masks": (
        {"boxes": BOX, "labels": [1], "masks": torch.zeros(2, 8, 8)},
        "1 boxes, but 2 masks",
    ),
    "none": (None, "every target must be a dict with boxes and labels"),
}


@pytest.mark.parametrize("name", ITEMS)
def test_a_python_item_that_does_not_fit_is_named(name: str) -> None:
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    bad, says = ITEMS[name]
    good = {"boxes": BOX, "labels": torch.tensor([1])}
    if isinstance(bad, dict) and "masks" in bad:
        good = {**good, "masks": torch.ones(1, 8, 8)}
    with pytest.raises(ValueError, match=rf"^list\[1\]: {re.escape(says)}") as told:
        load([(image, good), (image, bad), (image, good)])
    assert "\n" not in str(told.value)


def test_labels_may_be_whole_floats() -> None:
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    items = [(image, {"boxes": BOX, "labels": torch.tensor([float(1 + i % 2)])}) for i in range(4)]
    assert load(items).train.targets[0][:, 0, 4].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("bad", [torch.full((8, 8), math.nan), None, "a mask"], ids=str)
def test_a_mask_that_holds_no_classes_is_named(bad: object) -> None:
    image, good = torch.zeros(3, 8, 8, dtype=torch.uint8), torch.eye(8).long()
    with pytest.raises(ValueError, match=r"^list\[1\]: masks must hold whole numbers 0..254"):
        load([(image, good), (image, bad)])


# --- several labels -----------------------------------------------------------------------------


def test_several_labels_in_a_csv(tmp_path: Path) -> None:
    write_images(tmp_path, SCENES)
    lines = ["path,labels,split"]
    words = ["cat;dog", "", "dog", "cat|bird", "dog;bird", "cat"]
    lines += [f"{i:03d}.png,{word},{'test' if i == 5 else 'train'}" for i, word in enumerate(words)]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    split = load(tmp_path / "list.csv")
    assert split.task == "multilabel" and split.classes == ("bird", "cat", "dog")
    rows = [[0, 1, 1], [0, 0, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1]]
    assert split.train.targets[0].tolist() == rows
    assert split.test is not None and split.test.targets[0].tolist() == [[0, 1, 0]]
    (tmp_path / "list.csv").write_text("path,labels\n000.png,a\n001.png,a\n")
    with pytest.raises(ValueError, match="1 labels in all; two or more are needed"):
        load(tmp_path / "list.csv")


def test_groups_of_a_csv_with_several_labels_stay_whole(tmp_path: Path) -> None:
    for i in range(48):
        Image.new("L", (8, 8), i).save(tmp_path / f"{i:03d}.png")
    rows = [f"{i:03d}.png,{'cat' if i % 2 else 'dog;bird'},p{i // 4}" for i in range(48)]
    rows[0] = "000.png,fish,p0"
    rows[1] = "001.png,fish,p0"  # a class of one group alone stands in nobody's way
    (tmp_path / "list.csv").write_text("path,labels,group\n" + "\n".join(rows))
    for seed in range(5):
        split = split_off_validation(load(tmp_path / "list.csv"), 0.5, seed)
        assert split.val is not None
        train_N, val_N = split.train.groups_N, split.val.groups_N
        assert train_N is not None and val_N is not None
        assert not set(train_N.tolist()) & set(val_N.tolist())
        assert len(train_N) == len(val_N) == 24
    rows[2] += ",test"
    shared = "\n".join(["path,labels,group,split", *rows])
    (tmp_path / "list.csv").write_text(shared)
    notes = load(tmp_path / "list.csv").notes
    assert "groups have images in both train and test (p0); results on test may be" in notes[0]


def test_several_labels_in_an_npz(tmp_path: Path) -> None:
    labels = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
    images = np.zeros((4, 8, 8, 3), np.uint8)
    images += np.arange(4, dtype=np.uint8)[:, None, None, None]
    np.savez(tmp_path / "a.npz", images=images, labels=labels, classes=["x", "y", "z"])
    split = load(tmp_path / "a.npz")
    assert split.task == "multilabel" and split.classes == ("x", "y", "z")
    assert split.train.targets[0].tolist() == labels.tolist()
    one_each = np.eye(4, dtype=int)[:, :3]
    one_each[3, 0] = 1
    np.savez(tmp_path / "b.npz", images=images, labels=one_each)
    with pytest.raises(ValueError, match="one whole number per image"):
        load(tmp_path / "b.npz")
    assert load(tmp_path / "b.npz", task="multilabel").num_classes == 3


# --- strangers' ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda row: row.update(category_id=[1]), "1 annotations are of no category"),
        (lambda row: row.update(category_id=True), "1 annotations are of no category"),
        (lambda row: row.update(category_id=10**18), "1 annotations are of no category"),
        (lambda row: row.update(bbox=[10**400, 1, 2, 2]), "1 boxes are not four numbers"),
        (lambda row: row.update(bbox=[1e308, 1, 1e308, 2]), "1 boxes are not four numbers"),
        (lambda row: row.update(bbox=[True, 1, 2, 2]), "1 boxes are not four numbers"),
    ],
)
def test_hostile_numbers_are_left_out(change: Any, says: str, tmp_path: Path) -> None:
    split = with_coco(tmp_path, lambda content: change(content["annotations"][0]))
    assert noted(split, says), split.notes


@pytest.mark.parametrize("identity", [1.0, True, None, [1], {"a": 1}])
def test_an_id_that_is_none_is_named(identity: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"annotations\[0\]: 'image_id' should be a whole number"):
        with_coco(tmp_path, lambda content: content["annotations"][0].update(image_id=identity))


@pytest.mark.parametrize(
    "shape",
    [
        {"size": [48, 48], "counts": [10**15, 5]},
        {"size": [10**9, 10**9], "counts": [1]},
        {"size": [48, 48], "counts": [-1, 2305]},
        {"size": [48, 48], "counts": [2304.0]},
        {"size": [48, 48], "counts": "o" * 40},
        {"size": [48, 48], "counts": "\u00e9"},
        [[10**400, 1, 2, 3, 4, 5]],
        [[float("nan"), 1, 2, 3, 4, 5]],
        [[]],
    ],
)
def test_a_hostile_outline_names_its_image(shape: Any, tmp_path: Path) -> None:
    content = coco_of(SCENES, "polygons")
    content["annotations"][0]["segmentation"] = shape
    write_images(tmp_path / "images", SCENES)
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"000.png: the segmentation of its object 1 cannot be"):
        load(tmp_path)


def test_too_many_objects_and_classes(tmp_path: Path) -> None:
    write_yolo(tmp_path, SCENES)
    labels = tmp_path / "labels" / "000.txt"
    labels.write_text(f"0 0.5 0.5 0.2 0.2\n{10**18} 0.5 0.5 0.2 0.2\n")
    assert noted(load(tmp_path), "1 lines name a class above 9,999, left out")
    labels.write_text("0 0.5 0.5 0.2 0.2\n" * 10_001)
    with pytest.raises(ValueError, match=r"000.png: 10,001 objects, more than the 10,000"):
        load(tmp_path)


def test_pipes_and_loops_are_not_read(tmp_path: Path) -> None:
    write_yolo(tmp_path, SCENES)
    for name, make in (("000", os.mkfifo), ("001", lambda file: os.symlink(file, file))):
        file = tmp_path / "labels" / f"{name}.txt"
        file.unlink()
        make(file)
    split = load(tmp_path)
    assert len(split.train) == 4 and noted(split, "2 label files were left out with their images")
    os.mkfifo(tmp_path / "annotations.json")
    with pytest.raises(ValueError, match="not a file, but a folder, a pipe or a device"):
        load(tmp_path)


def test_doubled_keys_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "images", SCENES)
    (tmp_path / "annotations.json").write_text('{"images": [], "images": []}')
    with pytest.raises(ValueError, match="'images' is there twice"):
        load(tmp_path)

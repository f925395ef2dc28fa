"""MS-COCO annotations: which of the categories occur in each image."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from blindsight.core.checks import one_of
from blindsight.core.errors import HostileFile
from blindsight.data.formats.folders import relative_file
from blindsight.data.formats.jsonstream import stream_lists
from blindsight.data.limits import LIMITS, Limits
from blindsight.data.sets import MultiLabelSet
from blindsight.data.sources import Files

__all__ = ["load_coco"]


def load_coco(
    annotations: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    order: str = "name",
    limits: Limits = LIMITS,
) -> MultiLabelSet:
    """A multi-label set from instances_*.json, streamed: outlines and boxes are never held in
    memory.

    Args:
        annotations: The JSON file. images: The folder of the images, or None for labels only.
        order: "name" sorts the categories by name (as the label graphs do); "id" keeps COCO's
        order. limits: Bounds on bytes, images and categories.
    """
    one_of("order", order, {"name", "id"})
    files: dict[int, str] = {}
    categories: dict[int, str] = {}
    seen: set[tuple[int, int]] = set()
    name = Path(annotations).name
    for key, item in stream_lists(
        annotations, {"images", "annotations", "categories"}, limits=limits
    ):
        try:
            if key == "images":
                files[_whole(item["id"])] = str(item["file_name"])
            elif key == "categories":
                categories[_whole(item["id"])] = str(item["name"])
            else:
                seen.add((_whole(item["image_id"]), _whole(item["category_id"])))
        except (KeyError, TypeError):
            raise HostileFile(f"{name} has an entry in {key} without its id or name.") from None
        if len(files) > limits.rows or len(categories) > limits.columns or len(seen) > limits.cells:
            raise HostileFile(f"{name} has more images or categories than the limits allow.")
    if not files or not categories:
        raise HostileFile(
            f"{name} must have images and categories; it has {len(files)} and {len(categories)}."
        )
    ids = sorted(files)
    chosen = (
        sorted(categories, key=lambda c: categories[c]) if order == "name" else sorted(categories)
    )
    row, column = {i: r for r, i in enumerate(ids)}, {c: k for k, c in enumerate(chosen)}
    if len(ids) * len(chosen) > limits.unpacked_bytes:
        raise HostileFile(
            f"{name} would need {len(ids):,} x {len(chosen):,} labels, more than the limit."
        )
    labels = np.zeros((len(ids), len(chosen)), dtype=np.uint8)
    for image, category in seen:
        if image not in row or category not in column:
            raise HostileFile(
                f"{name} has an annotation of an image or category that it does not list."
            )
        labels[row[image], column[category]] = 1
    names = np.array([files[i] for i in ids])
    source = None
    if images is not None:
        source = Files(
            [relative_file(Path(images), file) for file in names.tolist()], limits=limits
        )
    return MultiLabelSet(
        labels, source, None, tuple(categories[c] for c in chosen), names, name=Path(name).stem
    )


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("an id must be a whole number")
    return value

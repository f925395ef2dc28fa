"""Table 3 and Caltech-256 run on a user's own folder: here a small made-up one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.federated import accuracy, sets


class Means:
    """In place of the network: the mean colour of each quarter of an image."""

    def __init__(self, **options: object) -> None:
        pass

    def transform(self, images) -> np.ndarray:
        return np.stack(
            [
                np.asarray(image).reshape(2, 4, 2, 4, 3).mean(axis=(1, 3)).ravel()
                for image, _ in images
            ]
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BLINDSIGHT_DATA", str(tmp_path))
    monkeypatch.setattr(sets.encoders, "EfficientNet", Means)
    return tmp_path


def photo(path: Path, bright: bool, rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((rng.integers(0, 100, (8, 8, 3)) + 150 * bright).astype(np.uint8)).save(path)


def test_table_3_runs_on_a_folder_of_faces(folder: Path) -> None:
    rng, lines, parts = np.random.default_rng(0), [], []
    for number in range(90):
        young = number % 2
        photo(folder / "celeba" / "img_align_celeba" / f"{number}.png", bool(young), rng)
        lines.append(f"{number}.png {1 if young else -1} {-1 if young else 1}")
        parts.append(f"{number}.png {(1, 0, 0, 0, 2)[number // 2 % 5]}")
    (folder / "celeba" / "list_attr_celeba.txt").write_text(
        "\n".join(["90", "Young Bald", *lines]) + "\n"
    )
    (folder / "celeba" / "list_eval_partition.txt").write_text("\n".join(parts) + "\n")
    rows = {row.id: row for row in accuracy.table3()}
    assert rows["federated.table3_dphe"].value > 90
    assert {"federated.table3_prr10_unclipped", "federated.table3_ra12_unclipped"} <= rows.keys()
    assert "2 attributes" in rows["federated.table3_dphe"].note


def test_caltech_256_runs_on_a_folder_of_classes(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for place, name in enumerate(("001.ak47", "002.flag", "257.clutter")):
        for number in range(40):
            photo(
                folder / "caltech256" / "256_ObjectCategories" / name / f"{number}.png",
                place == 1,
                rng,
            )
    rows = {row.id: row for row in accuracy.table1_256(0, splits=1)}
    assert rows["federated.table1_caltech256_central"].value > 90
    assert "72 training images" in rows["federated.table1_caltech256_dphe"].note


def test_what_is_missing_is_said(folder: Path) -> None:
    for rows in (accuracy.table3(), accuracy.table1_256(0)):
        [row] = rows
        assert row.unit == "skipped"
        assert "not on this machine" in row.note


def test_splits_have_the_papers_counts_where_there_are_enough() -> None:
    y = np.repeat([0, 1], [90, 30])
    split = sets.split(np.zeros((120, 1)), y, seed=0, train=30, most=50)
    assert [
        np.bincount(part[1]).tolist() for part in (split.public, split.private, split.test)
    ] == [
        [3, 3],
        [27, 24],
        [50, 3],
    ]

"""Readers of the data sets in the catalogue: each takes a folder and a split, and knows its files.

The tables of the metric paper, UCI Adult and UCI Bank, are encoded by their public code books, so
that the encoding says nothing about the records.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from blindsight.core.checks import one_of
from blindsight.core.errors import HostileFile, MissingData
from blindsight.data.annotations import load_celeba, load_coco, load_nuswide
from blindsight.data.arrays import load_arrays, load_cifar, load_idx
from blindsight.data.limits import LIMITS, Limits, regular_file
from blindsight.data.listing import load_class_folders
from blindsight.data.sets import ImageSet, MultiLabelSet, Table
from blindsight.data.sources import ZipMembers
from blindsight.data.tables import Column, class_numbers, encode, read_rows, read_text

__all__ = [
    "ADULT",
    "BANK",
    "divided",
    "load_adult",
    "load_bank",
    "load_numbers",
    "present",
    "variant",
]


def variant(path: Path) -> Path | None:
    """The file or folder, or the same file compressed; None if there is neither."""
    return next(
        (p for end in ("", ".gz", ".xz") if (p := path.with_name(path.name + end)).exists()), None
    )


def present(path: Path) -> Path:
    """Return the file or its compressed form; raise `MissingData` if there is neither."""
    existing = variant(path)
    if existing is None:
        raise MissingData(f"{path} does not exist.")
    return existing


S = TypeVar("S", ImageSet, Table)


def divided(whole_set: S, split: str | None) -> S:
    """The 80:20 split, always the same, of a set that has no official one; stratified by class."""
    if split is None:
        return whole_set
    return whole_set.split({"train": 0.8, "test": 0.2}, seed=0)[split]


def idx(
    name: str, classes: tuple[str, ...], dims: int = 3
) -> Callable[[Path, str | None], ImageSet]:
    """A reader of the four files of MNIST and its like."""

    def part(folder: Path, prefix: str) -> ImageSet:
        images = present(folder / f"{prefix}-images-idx{dims}-ubyte")
        labels = present(folder / f"{prefix}-labels-idx1-ubyte")
        return load_idx(images, labels, classes=classes, name=name)

    def read(folder: Path, split: str | None) -> ImageSet:
        if split is not None:
            return part(folder, "train" if split == "train" else "t10k")
        parts = [part(folder, "train"), part(folder, "t10k")]
        labels = [each.labels for each in parts if each.labels is not None]
        images = np.concatenate([each.array() for each in parts])
        return ImageSet(images, np.concatenate(labels), None, classes, name)

    return read


def idx_files(dims: int = 3) -> tuple[str, ...]:
    """Return the names of the four idx files of a data set like MNIST."""
    kinds = (f"images-idx{dims}", "labels-idx1")
    return tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in kinds)


def cifar(kind: str) -> Callable[[Path, str | None], ImageSet]:
    """A reader of the binary version of CIFAR."""
    return lambda folder, split: load_cifar(folder, kind=kind, split=split)


def adult(folder: Path, split: str | None, *, encoding: str = "onehot") -> Table:
    """UCI Adult with its official split."""
    train = present(folder / "adult.data") if split != "test" else None
    test = present(folder / "adult.test") if split != "train" else None
    return load_adult(train, test, encoding=encoding)


def bank(folder: Path, split: str | None, *, encoding: str = "onehot") -> Table:
    """Read UCI Bank marketing; its split is made by `divided`."""
    return divided(load_bank(present(folder / "bank-full.csv"), encoding=encoding), split)


def numbers(file: str, name: str) -> Callable[[Path, str | None], Table]:
    """A reader of a table of numbers with the label last."""
    return lambda folder, split: divided(load_numbers(present(folder / file), name=name), split)


def coco_subset(folder: Path, split: str | None) -> MultiLabelSet:
    """4,500 images of MS-COCO in one zip file."""
    stored = load_arrays(folder / "labels.npz")
    parts, ids = stored["split"], stored["image_id"]
    names = np.array([f"{part}/{image:012d}.jpg" for part, image in zip(parts, ids, strict=True)])
    images = ZipMembers(folder / "images.zip", names.tolist())
    classes = tuple(stored["classes"].tolist())
    whole_set = MultiLabelSet(stored["labels"], images, None, classes, names, name="coco-subset")
    return whole_set if split is None else whole_set.take(parts == split)


def voc2012_subset(folder: Path, split: str | None) -> MultiLabelSet:
    """4,500 images of PASCAL VOC 2012 in one zip file.

    Labels that are marked as difficult count as absent and as unsure (`known`).
    """
    stored = load_arrays(folder / "labels.npz")
    parts, ids, raw = stored["split"], stored["image_id"], stored["labels"]
    names = np.array([f"{part}/{image}.jpg" for part, image in zip(parts, ids, strict=True)])
    whole_set = MultiLabelSet(
        (raw == 1).astype(np.uint8),
        ZipMembers(folder / "images.zip", names.tolist()),
        None,
        tuple(stored["classes"].tolist()),
        names,
        known=raw != 0,
        name="voc2012-subset",
    )
    return whole_set if split is None else whole_set.take(parts == split)


def coco(folder: Path, split: str | None) -> MultiLabelSet:
    """MS-COCO 2017: "train" is train2017, "test" is val2017 (the test labels are not public)."""
    if split is None:
        raise MissingData(
            'MS-COCO is loaded by part: split="train" (train2017) or "test" (val2017).'
        )
    part = "train2017" if split == "train" else "val2017"
    photos = folder / part
    return load_coco(
        folder / "annotations" / f"instances_{part}.json", photos if photos.is_dir() else None
    )


def caltech_zip(folder: Path, split: str | None, *, background: bool = False) -> ImageSet:
    """Caltech-101 in one zip file, `class/image.jpg`."""
    path = regular_file(folder / "images.zip", largest=LIMITS.file_bytes)
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise HostileFile(
            f"images.zip of Caltech-101 is not a readable zip file: {error}."
        ) from error
    members = sorted(m for m in listed if m.lower().endswith(".jpg") and m.count("/") == 1)
    if not background:  # the 102nd folder is no class
        members = [m for m in members if not m.startswith("BACKGROUND_Google/")]
    classes = sorted({m.split("/")[0] for m in members})
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number[m.split("/")[0]] for m in members], dtype=np.int64)
    images = ZipMembers(path, members)
    return divided(ImageSet(images, labels, np.array(members), tuple(classes), "caltech101"), split)


def caltech_folders(folder: Path, split: str | None, *, background: bool = False) -> ImageSet:
    """Caltech-101 as it unpacks: a folder per class."""
    leave_out = () if background else ("BACKGROUND_Google",)
    return divided(load_class_folders(folder / "101_ObjectCategories", leave_out=leave_out), split)


def caltech256(folder: Path, split: str | None) -> ImageSet:
    """Caltech-256 as it unpacks, without its folder of clutter."""
    return divided(
        load_class_folders(folder / "256_ObjectCategories", leave_out=("257.clutter",)), split
    )


def multilabel(
    name: str, classes: tuple[str, ...] = ()
) -> Callable[[Path, str | None], MultiLabelSet]:
    """A reader of features with labels and an official split, in one npz file."""

    def read(folder: Path, split: str | None) -> MultiLabelSet:
        stored = load_arrays(folder / f"{name}.npz")
        parts = ("train", "test") if split is None else (split,)
        X = np.concatenate([stored[f"X_{part}"] for part in parts]).astype(np.float64)
        labels = np.concatenate([stored[f"y_{part}"] for part in parts])
        return MultiLabelSet(labels, None, X, classes, name=name)

    return read


def voc_labels(folder: Path, split: str | None) -> MultiLabelSet:
    """The labels of PASCAL VOC 2007 without its images."""
    stored = load_arrays(folder / "labels.npz")
    parts = {"train": ("trainval",), "test": ("test",), None: ("trainval", "test")}[split]
    raw = np.concatenate([stored[f"labels_{part}"] for part in parts])
    names = np.concatenate([stored[f"ids_{part}"] for part in parts])
    classes = tuple(stored["classes"].tolist())
    # 1 present, -1 absent, 0 only difficult objects: not counted as present, and marked as unsure.
    labels = (raw == 1).astype(np.uint8)
    return MultiLabelSet(
        labels, classes=classes, names=names, known=raw != 0, name="voc2007-labels"
    )


def celeba(folder: Path, split: str | None) -> MultiLabelSet:
    """CelebA's attributes and, if they are there, its aligned images."""
    photos, partition = folder / "img_align_celeba", folder / "list_eval_partition.txt"
    return load_celeba(
        folder / "list_attr_celeba.txt",
        photos if photos.is_dir() else None,
        partition=partition,
        split=split,
    )


def nuswide(folder: Path, split: str | None) -> MultiLabelSet:
    """NUS-WIDE's lists and, if they are there, its images."""
    photos = folder / "Flickr"
    return load_nuswide(folder, split=split, images=photos if photos.is_dir() else None)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


# Categories come from adult.names and bank-names, not from the records: encoding reveals nothing.
ADULT = (
    Column("age"),
    Column(
        "workclass",
        _words(
            "Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, "
            "Without-pay, Never-worked"
        ),
    ),
    Column("fnlwgt"),
    Column(
        "education",
        _words(
            "Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, "
            "7th-8th, 12th,"
            "Masters, 1st-4th, 10th, Doctorate, 5th-6th, Preschool"
        ),
    ),
    Column("education-num"),
    Column(
        "marital-status",
        _words(
            "Married-civ-spouse, Divorced, Never-married, Separated, Widowed, "
            "Married-spouse-absent,Married-AF-spouse"
        ),
    ),
    Column(
        "occupation",
        _words(
            "Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty,"
            "Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving,"
            "Priv-house-serv, Protective-serv, Armed-Forces"
        ),
    ),
    Column(
        "relationship", _words("Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried")
    ),
    Column("race", _words("White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black")),
    Column("sex", _words("Female, Male")),
    Column("capital-gain"),
    Column("capital-loss"),
    Column("hours-per-week"),
    Column(
        "native-country",
        _words(
            "United-States, Cambodia, England, Puerto-Rico, Canada, Germany, "
            "Outlying-US(Guam-USVI-etc), India,"
            "Japan, Greece, South, China, Cuba, Iran, Honduras, Philippines, Italy, Poland, "
            "Jamaica, Vietnam,"
            "Mexico, Portugal, Ireland, France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, "
            "Columbia,"
            "Hungary, Guatemala, Nicaragua, Scotland, Thailand, Yugoslavia, El-Salvador, "
            "Trinadad&Tobago, Peru,"
            "Hong, Holand-Netherlands"
        ),
    ),
)

# The all-binary encoding: numbers become five intervals (two for the capital columns), 123 columns
# in all, which with the label are the 124 of the metric paper's Table I. The cuts are the fifths of
# UCI's training part, written down once: encoding other records does not look at them.
_ADULT_CUTS: dict[str, tuple[float, ...]] = {
    "age": (26, 33, 41, 50),
    "fnlwgt": (106648, 158662, 196338, 259873),
    "education-num": (8, 9, 10, 12),
    "capital-gain": (0,),
    "capital-loss": (0,),
    "hours-per-week": (35, 39, 40, 48),
}

BANK = (
    Column("age"),
    Column(
        "job",
        _words(
            "admin., unknown, unemployed, management, housemaid, entrepreneur, student, "
            "blue-collar,"
            "self-employed, retired, technician, services"
        ),
    ),
    Column("marital", _words("married, divorced, single")),
    Column("education", _words("unknown, secondary, primary, tertiary")),
    Column("default", _words("no, yes")),
    Column("balance"),
    Column("housing", _words("no, yes")),
    Column("loan", _words("no, yes")),
    Column("contact", _words("unknown, telephone, cellular")),
    Column("day"),
    Column("month", _words("jan, feb, mar, apr, may, jun, jul, aug, sep, oct, nov, dec")),
    Column("duration"),
    Column("campaign"),
    Column("pdays"),
    Column("previous"),
    Column("poutcome", _words("unknown, other, failure, success")),
)


def load_adult(
    train: Path | None,
    test: Path | None = None,
    *,
    encoding: str = "onehot",
    limits: Limits = LIMITS,
) -> Table:
    """UCI Adult from adult.data and adult.test (one of them, or both joined).

    Parameters:
        train: adult.data, or None. test: adult.test, or None. encoding: "onehot" keeps the 6
        numbers and makes 99 indicators (105 columns); "binary" makes all
            123 columns 0 or 1. A missing value ("?") is all zeros.
        limits: Bounds on bytes and rows.
    """
    one_of("encoding", encoding, {"onehot", "binary"})
    rows: list[list[str]] = []
    for path in (train, test):
        if path is not None:
            rows += read_rows(
                read_text(path, limits=limits), name=path.name, comment="|", limits=limits
            )
    if any(len(row) != len(ADULT) + 1 for row in rows):
        raise HostileFile(f"Adult must have {len(ADULT) + 1} columns.")
    # adult.test writes its labels with a full stop at the end.
    labels = [row[-1].rstrip(".") for row in rows]
    columns: tuple[Column, ...] = ADULT
    if encoding == "binary":
        columns = tuple(Column(c.name, c.categories, _ADULT_CUTS.get(c.name, ())) for c in ADULT)
    classes = ("<=50K", ">50K")
    X = encode([row[:-1] for row in rows], columns, name="Adult", unknown="zeros")
    y = class_numbers(labels, classes, name="Adult")
    return Table(X, y, tuple(n for c in columns for n in c.names), classes, name="adult")


def load_bank(path: Path, *, encoding: str = "onehot", limits: Limits = LIMITS) -> Table:
    """UCI Bank marketing from bank-full.csv (comma or semicolon).

    Parameters:
        path: The file. encoding: "onehot" keeps the 7 numbers and makes 44 indicators (51 columns);
        "paper" makes the 32 columns
            which with the label are the 33 of the metric paper's Table I.
        limits: Bounds on bytes and cells.
    """
    one_of("encoding", encoding, {"onehot", "paper"})
    text = read_text(path, limits=limits)
    delimiter = ";" if text[:200].count(";") > text[:200].count(",") else ","
    header, *body = read_rows(text, name=path.name, delimiter=delimiter, limits=limits)
    if header != [*(c.name for c in BANK), "y"] or not body:
        raise HostileFile(
            f"{path.name} must have rows and the columns {', '.join(c.name for c in BANK)}, y."
        )
    classes = ("no", "yes")
    X = encode([row[:-1] for row in body], BANK, name="Bank")
    y = class_numbers([row[-1] for row in body], classes, name="Bank")
    table = Table(X, y, tuple(n for c in BANK for n in c.names), classes, name="bank")
    return table if encoding == "onehot" else _bank_paper(table)


def _bank_paper(table: Table) -> Table:
    """Redundant indicators dropped, the date as one number, "never called before" beside the days
    since.
    """
    values = dict(zip(table.columns, table.X.T, strict=True))
    months = sum((i + 1) * values[f"month={month}"] for i, month in enumerate(BANK[10].categories))
    derived = {
        "date": 30 * months + values["day"],
        "called before": (values["pdays"] != -1).astype(np.float64),
        "days since": np.maximum(values["pdays"], 0),
    }
    names = (
        "age",
        *(f"job={job}" for job in BANK[1].categories if job != "unknown"),
        *("marital=single", "marital=married"),
        *(f"education={level}" for level in ("primary", "secondary", "tertiary")),
        *(
            "default=yes",
            "balance",
            "housing=yes",
            "loan=yes",
            "contact=telephone",
            "contact=cellular",
        ),
        *("date", "duration", "campaign", "called before", "days since", "previous"),
        *(f"poutcome={outcome}" for outcome in ("other", "failure", "success")),
    )
    X = np.stack([derived[name] if name in derived else values[name] for name in names], axis=1)
    return Table(X, table.y, names, table.classes, name="bank-33")


def load_numbers(path: Path, *, name: str, limits: Limits = LIMITS) -> Table:
    """A table of numbers separated by blanks, the label in the last column (0 or 1)."""
    text = read_text(path, limits=limits)
    try:
        values = np.array(
            [line.split() for line in text.splitlines() if line.strip()], dtype=np.float64
        )
    except ValueError:
        raise HostileFile(f"{path.name} must hold rows of numbers, all of one width.") from None
    if values.ndim != 2 or values.shape[1] < 2 or not np.isfinite(values).all():
        raise HostileFile(f"{path.name} must hold rows of at least two finite numbers.")
    y = values[:, -1]
    if not np.isin(y, (0, 1)).all():
        raise HostileFile(f"{path.name} must have 0 or 1 in its last column.")
    return Table(values[:, :-1], y.astype(np.int64), name=name)

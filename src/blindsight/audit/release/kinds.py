"""What photos show, by each source that says so: labels, folders, a public network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blindsight.core.arrays import Array, Floats32, Ints
from blindsight.core.errors import InvalidData
from blindsight.data.label_tables import read_column
from blindsight.encoders import BuiltIn, Encoder

__all__ = ["Kinds", "folder_kinds", "kinds_of", "told_kinds"]


@dataclass(frozen=True, eq=False)
class Kinds:
    """What each photo shows.

    Parameters:
        shows: the number of each photo's kind.
        names: the names of the kinds.
        source: what says so.
    """

    shows: Ints
    names: tuple[str, ...]
    source: str


def kinds_of(
    names: Sequence[str],
    rows: Array,
    encoder: Encoder,
    labels: str | None = None,
    *,
    folders: bool = True,
) -> tuple[Kinds, ...]:
    """Return what photos show by every source: the owner's labels alone, or folders and network.

    Parameters:
        names: the photos' names relative to their folder.
        rows: the photos' features.
        encoder: what made the features; where it brings a public classifier, its classes count.
        labels: "folder", or FILE.csv:COLUMN with the photos' names in the first column.
        folders: whether folders say what photos show; False where they name people.

    Returns:
        The owner's source first; empty where nothing says anything.
    """
    if labels is not None and labels != "folder":
        told = told_kinds(names, labels)
        return () if told is None else (told,)
    by_folder = told_kinds(names, labels) if folders else None
    weights = _classifier(encoder)
    by_network: tuple[Kinds, ...] = ()
    if weights is not None:
        classes = [str(number) for number in (rows @ weights.T).argmax(axis=1)]
        by_network = (_numbered(classes, f"the {len(weights):,} public classes of the network"),)
    return by_network if by_folder is None else (by_folder, *by_network)


def _classifier(encoder: Encoder) -> Floats32 | None:
    """The weights of the encoder's public classes; those built in need no file of names."""
    if isinstance(encoder, BuiltIn):
        from blindsight.encoders.weights import head

        return None if encoder.network is None else head(encoder.network)
    classes = encoder.classes()
    return None if classes is None else classes.weights


def told_kinds(names: Sequence[str], labels: str | None) -> Kinds | None:
    """Return what the owner says that photos show, by their names.

    Returns:
        None where neither labels nor folders say anything.

    Raises:
        InvalidData: if a table lacks a photo, or folders are asked for and there is only one.
    """
    if labels is not None and labels != "folder":
        return _numbered(
            _from_table(labels, names), f"column {labels.rpartition(':')[2]} of your table"
        )
    told = folder_kinds(names)
    if told is None and labels == "folder":
        if len({_last_folder(name) for name in names}) < 2:
            raise InvalidData(
                "the photos lie in one folder, so folders say nothing of what they show."
            )
        return _numbered([_last_folder(name) for name in names], "the folders they lie in")
    return told


def folder_kinds(names: Sequence[str]) -> Kinds | None:
    """Return the last folder of each photo as what it shows: "2024/beach/1.jpg" shows a beach.

    The last one is what people name after the subject, in archives of years or trips, too.

    Returns:
        None where there is one folder only, or hardly two photos in each.

    Example:
        >>> folder_kinds([f"{year}/{kind}/1.jpg" for year in "ab" for kind in ("cat", "dog")]).names
        ('cat', 'dog')
    """
    folders = [_last_folder(name) for name in names]
    if not 2 <= len(set(folders)) <= len(folders) // 2:
        return None
    return _numbered(folders, "the folders they lie in")


def _last_folder(name: str) -> str:
    return name.rpartition("/")[0].rpartition("/")[2]


def _numbered(texts: Sequence[str], source: str) -> Kinds:
    names, shows = np.unique(np.asarray(texts, dtype=np.str_), return_inverse=True)
    return Kinds(shows.astype(np.int64), tuple(str(name) for name in names), source)


def _from_table(rule: str, names: Sequence[str]) -> list[str]:
    table = read_column(rule, names, option="labels")
    missing = sum(not table.get(name) for name in names)
    if missing:
        path = rule.rpartition(":")[0]
        raise InvalidData(
            f"{missing} of {len(names)} photos have no label in {path}. Every photo needs one."
        )
    return [table[name] for name in names]

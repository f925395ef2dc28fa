"""Codebooks from what is public: a network's weights, a folder of pictures, a folder of labelled
pictures.

All numbers here were chosen on Caltech-101's even classes, CIFAR-10 and COCO; the others are for
reporting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks.cells import (
    Cells,
    ClassCells,
    Embedding,
    GroupCells,
    LabelCells,
    PairCells,
    head_space,
    unit_rows,
    ward_groups,
)
from blindsight.codebooks.codebook import Codebook, number_of_cells
from blindsight.codebooks.reading import Reading
from blindsight.core.errors import InvalidData
from blindsight.privacy.mechanisms import KaryResponse

__all__ = [
    "LEAST_PICTURES",
    "MOST_CELLS",
    "from_classes",
    "from_head",
    "from_labels",
    "from_pictures",
]

Array = NDArray[Any]
Floats = NDArray[np.float32]

#: fewer pictures than these make worse cells than a network's classes alone.
LEAST_PICTURES = 100
# Pairs of atoms once there are this many cells to give away per atom.
_PAIRS_FROM = 6
#: more cells than these of single pictures tell no more than their noise.
MOST_CELLS = 150
# The same with classes of a network among them; how many classes near each picture join it, and
# what near means.
_MOST_WITH_CLASSES, _NEAR_CLASSES, _NEAR = 200, 5, 0.1
# Logistic regression's C on unit rows, and for one label of several; folds, and the most pictures
# that pairs are of.
_STRENGTH, _STRENGTH_EACH, _FOLDS, _MOST_PAIRED = 25.0, 10.0, 5, 1500
# Pictures for each group of answers, at least, with one class each or several labels; groups of
# classes must leave the truth to be told this often.
_EACH_GROUP, _EACH_SET, _TOLD = 40, 12, 0.9
# Where a slope is looked for (its logarithm), and the least probability that a fit believes.
_SLOPES, _SELDOM = (math.log(1e-3), math.log(30.0)), 1e-6


def from_head(
    network: str, epsilon: float, *, n_cells: int | None = None, first_page: bool = False
) -> Codebook:
    """Cells from the 1,000 classes of a pretrained network: nothing but public weights.

    `first_page` trades the order of the whole list for the first ten hits: more cells at the same
    epsilon.
    """
    embedding, atoms = head_space(network)
    rule = (
        number_of_cells(epsilon, "first page", most=len(atoms))
        if first_page
        else number_of_cells(epsilon)
    )
    return Codebook(embedding, _of_atoms(atoms, n_cells or rule), epsilon)


def from_pictures(
    rows: Array,
    epsilon: float,
    *,
    network: str | None,
    n_cells: int | None = None,
    least: int = LEAST_PICTURES,
) -> Codebook:
    """Cells from features (n, d) of public pictures of the domain, with the network's classes near
    them.

    Without a network (pixels) the pictures alone are the atoms.
    """
    pictures = _enough(rows, least)
    space, classes = (
        (Embedding.plain(pictures.shape[1]), None) if network is None else head_space(network)
    )
    embedding = space.around(pictures)
    atoms = embedding(pictures)
    if classes is not None:
        moved = embedding.moved(classes)
        near = np.unique(np.argsort(-(atoms @ moved.T), axis=1)[:, :_NEAR_CLASSES])
        atoms = np.concatenate([atoms, _drawn(moved[near], atoms)])
    wanted = n_cells or number_of_cells(epsilon)
    if wanted / len(atoms) < _PAIRS_FROM:
        wanted = n_cells or min(wanted, MOST_CELLS if classes is None else _MOST_WITH_CLASSES)
    return Codebook(embedding, _of_atoms(atoms, wanted), epsilon, "pictures")


def _drawn(classes: Floats, pictures: Floats) -> Floats:
    """Classes drawn half-way to the pictures near them: what a class looks like in this domain."""
    weight = np.exp((classes @ pictures.T) / np.float32(_NEAR))
    return unit_rows(classes + (weight / weight.sum(axis=1, keepdims=True)) @ pictures)


def from_classes(
    rows: Array, labels: Sequence[Any] | Array, epsilon: float, *, network: str | None
) -> Codebook:
    """Cells from features (n, d) of public pictures with one class each: a classifier's answer.

    The folder's own pairs say how relevance grows with similarity, so hits get a probability of
    relevance.
    """
    pictures, given = _enough(rows, 4), np.asarray(labels)
    if given.shape != (len(pictures),):
        raise InvalidData(f"give one class per picture: got {given.shape} for {len(pictures)}.")
    names, y = np.unique(given, return_inverse=True)
    if len(names) < 2 or np.bincount(y).min() < 2:
        raise InvalidData(
            "labelled pictures need at least two classes, each with at least two pictures."
        )
    space = Embedding.plain(pictures.shape[1]) if network is None else head_space(network)[0]
    marks = np.eye(len(names), dtype=np.float32)[y]
    return _of_answers(
        space, space(pictures), marks, epsilon, names=tuple(str(name) for name in names)
    )


def from_labels(
    rows: Array, labels: Array, epsilon: float, *, n_cells: int | None = None
) -> Codebook:
    """Cells from features (n, d) of public images and an indicator (n, C) of their labels, without
    a network.
    """
    pictures = _enough(rows, 2)
    space = Embedding.plain(pictures.shape[1]).around(pictures)
    marks = labels[:, labels.any(axis=0)].astype(np.float32)
    return _of_answers(space, space(pictures), marks, epsilon, n_cells=n_cells)


def _of_answers(
    space: Embedding,
    points: Floats,
    labels: Floats,
    epsilon: float,
    *,
    n_cells: int | None = None,
    names: tuple[str, ...] = (),
) -> Codebook:
    """A classifier's answers are the cells: by themselves, or in groups where the budget and the
    pictures pay for more.

    Groups are made of answers for pictures that the classifier had not seen, as stored images will
    not have been; which of these pictures' pairs share a label says how relevance grows.
    """
    if labels.shape[1] < 2:
        raise InvalidData("labelled images need at least two classes.")
    kind = ClassCells if (labels.sum(axis=1) == 1).all() else LabelCells
    cells = kind(*_classifier(points, labels))
    unseen = _unseen(points, labels, kind)
    some = np.arange(0, len(labels), -(-len(labels) // _MOST_PAIRED))
    most = min(MOST_CELLS, len(labels) // (_EACH_GROUP if kind is ClassCells else _EACH_SET))
    wanted = n_cells or number_of_cells(epsilon, "few", most=most)
    if kind is LabelCells or (wanted > cells.k and _told(epsilon, wanted) > _TOLD):
        cells = kind(cells.coefficients, cells.intercept, _group_means(unseen[some], wanted))
    slope = _slope(cells, unseen[some], labels[some])
    return Codebook(space, cells, epsilon, "labelled pictures", slope, names)


def _told(epsilon: float, k: int) -> float:
    return KaryResponse(epsilon=epsilon, k=k, unit="record").truth_probability


def _group_means(answers: Floats, k: int) -> Floats:
    group = ward_groups(answers, k)
    member = np.eye(int(group.max()) + 1, dtype=np.float32)[group]
    return np.asarray((member / member.sum(axis=0)).T @ answers, dtype=np.float32)


def _enough(rows: Array, least: int) -> Floats:
    pictures = np.asarray(rows, dtype=np.float32)
    if pictures.ndim != 2 or len(pictures) < least:
        raise InvalidData(
            f"cells need at least {least} public pictures, got features of shape {pictures.shape}."
        )
    return pictures


def _of_atoms(atoms: Floats, wanted: int) -> Cells:
    """Groups of atoms; or pairs, where the budget pays for several cells per atom."""
    each = round(wanted / len(atoms))
    if each >= _PAIRS_FROM:
        return PairCells.of(atoms, min(each, len(atoms) - 1))
    return GroupCells(atoms, ward_groups(atoms, min(wanted, len(atoms))))


def _classifier(points: Floats, labels: Floats) -> tuple[Floats, Floats]:
    """(coefficients, intercept) of logistic regression for an indicator: one answer for all
    classes, or one per label where pictures have several.
    """
    import warnings

    from sklearn.linear_model import LogisticRegression

    several = not (labels.sum(axis=1) == 1).all()
    coefficients, intercept = (
        np.zeros((labels.shape[1], points.shape[1])),
        np.full(labels.shape[1], -30.0),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not yet converged is good enough
        if several:
            for label in np.flatnonzero(labels.any(axis=0) & ~labels.all(axis=0)):
                fitted = LogisticRegression(C=_STRENGTH_EACH, max_iter=100).fit(
                    points, labels[:, label]
                )
                coefficients[label], intercept[label] = fitted.coef_[0], fitted.intercept_[0]
            intercept[labels.all(axis=0)] = 30.0
        else:
            seen, y = np.unique(labels.argmax(axis=1), return_inverse=True)
            if len(seen) > 1:
                fitted = LogisticRegression(C=_STRENGTH, max_iter=500).fit(points, y)
                two = len(seen) == 2  # scikit-learn keeps one row for two classes
                coefficients[seen] = (
                    np.concatenate([-fitted.coef_, fitted.coef_]) / 2 if two else fitted.coef_
                )
                intercept[seen] = (
                    np.r_[-fitted.intercept_, fitted.intercept_] / 2 if two else fitted.intercept_
                )
            else:
                intercept[seen] = 0.0
    return coefficients.astype(np.float32), intercept.astype(np.float32)


def _unseen(points: Floats, labels: Floats, kind: type[ClassCells]) -> Floats:
    """Answers for each picture by a classifier that did not learn from it; the pictures of a class
    are dealt out.
    """
    folds = _FOLDS if len(labels) <= _MOST_PAIRED else 3
    number = np.arange(len(labels)) % folds
    if kind is ClassCells:
        y = labels.argmax(axis=1)
        folds = max(2, min(folds, int(np.bincount(y)[np.unique(y)].min())))
        for label in np.unique(y):
            own = np.flatnonzero(y == label)
            number[own] = np.arange(len(own)) % folds
    answers = np.zeros_like(labels)
    for fold in range(folds):
        unseen = number == fold
        if unseen.any() and not unseen.all():
            answers[unseen] = kind(*_classifier(points[~unseen], labels[~unseen])).answers(
                points[unseen]
            )
    return answers


def _slope(cells: ClassCells, answers: Floats, labels: Floats) -> float:
    """How relevance grows with the odds of a shared label: the slope of `Reading.relevance` under
    which it is likeliest which pictures share a label, for pictures and the cells of the others'
    answers.
    """
    from scipy.optimize import minimize_scalar

    own = np.eye(cells.k, dtype=np.float32)[cells.nearest(answers)]
    shared = (labels @ labels.T > 0).astype(np.float32)
    np.fill_diagonal(shared, 0)  # no picture is a pair with itself
    others = shared.sum(axis=1, keepdims=True)
    # Pairs with one picture and all pictures of one cell have one similarity: they are counted, not
    # listed.
    same = shared @ own
    other = own.sum(axis=0) - own - same
    if not same.any() or not other.any():
        return 1.0
    # With few of a class, the picture that is left out is missed; among many stored images it would
    # not be.
    same *= (others + 1) / np.maximum(others, 1)
    similarity, prior = cells.likely(answers), own.mean(axis=0, dtype=np.float64)
    often = float(same.sum() / (same.sum() + other.sum()))

    def surprise(log_slope: float) -> float:
        shown = Reading(prior, 1.0, often, math.exp(log_slope)).relevance(similarity)
        shown = np.clip(shown, _SELDOM, 1 - _SELDOM)
        return -float((same * np.log(shown) + other * np.log(1 - shown)).sum())

    found = minimize_scalar(surprise, bounds=_SLOPES, method="bounded", options={"xatol": 0.01})
    return math.exp(found.x)

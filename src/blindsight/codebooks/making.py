"""Codebooks from what is public: a network's weights, a folder of pictures, a folder of labelled pictures.

All numbers here were chosen on Caltech-101's even classes, CIFAR-10 and COCO; the others are for reporting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks.cells import Cells, ClassCells, GroupCells, PairCells, ward_groups
from blindsight.codebooks.codebook import Codebook, number_of_cells
from blindsight.codebooks.embedding import Embedding, head_space
from blindsight.core.errors import InvalidData

__all__ = ["LEAST_PICTURES", "MOST_CELLS", "from_classes", "from_head", "from_labels", "from_pictures"]

Array = NDArray[Any]
Floats = NDArray[np.float32]

#: fewer pictures than these make worse cells than a network's classes alone.
LEAST_PICTURES = 100
# Pairs of atoms once there are this many cells to give away per atom.
_PAIRS_FROM = 6
#: more cells than these of single pictures tell no more than their noise.
MOST_CELLS = 150
# How many classes near each picture join it as atoms.
_NEAR_CLASSES = 5
# Logistic regression's C on unit rows; folds, and the most pictures, for the fit of the slope.
_STRENGTH, _FOLDS, _MOST_PAIRED = 25.0, 5, 1500
# Pictures for each group of label sets, at least.
_EACH_GROUP = 8


def from_head(network: str, epsilon: float, *, n_cells: int | None = None, first_page: bool = False) -> Codebook:
    """Cells from the 1,000 classes of a pretrained network: nothing but public weights.

    `first_page` trades the order of the whole list for the first ten hits: more cells at the same epsilon.
    """
    embedding, atoms = head_space(network)
    most = round(min(1.5 * math.exp(min(epsilon, 20.0)), len(atoms))) if first_page else number_of_cells(epsilon)
    return Codebook(embedding, _of_atoms(atoms, n_cells or max(2, most)), epsilon)


def from_pictures(
    rows: Array, epsilon: float, *, network: str | None, n_cells: int | None = None, least: int = LEAST_PICTURES
) -> Codebook:
    """Cells from features (n, d) of public pictures of the domain, with the network's classes near them.

    Without a network (pixels) the pictures alone are the atoms.
    """
    pictures = _enough(rows, least)
    space, classes = (Embedding.plain(pictures.shape[1]), None) if network is None else head_space(network)
    embedding = space.around(pictures)
    atoms = embedding(pictures)
    if classes is not None:
        moved = embedding.moved(classes)
        near = np.unique(np.argsort(-(atoms @ moved.T), axis=1)[:, :_NEAR_CLASSES])
        atoms = np.concatenate([atoms, moved[near]])
    wanted = n_cells or number_of_cells(epsilon)
    if wanted / len(atoms) < _PAIRS_FROM:
        wanted = n_cells or min(wanted, MOST_CELLS)
    return Codebook(embedding, _of_atoms(atoms, wanted), epsilon, "pictures")


def from_classes(rows: Array, labels: Sequence[Any] | Array, epsilon: float, *, network: str | None) -> Codebook:
    """Cells from features (n, d) of public pictures with one class each: a classifier's answer.

    Dividing classes further was tried: it gained nothing and spoilt the calibration.
    The folder's own pairs say how relevance grows with similarity, so hits get a probability of relevance.
    """
    pictures, given = _enough(rows, 4), np.asarray(labels)
    if given.shape != (len(pictures),):
        raise InvalidData(f"give one class per picture: got {given.shape} for {len(pictures)}.")
    names, y = np.unique(given, return_inverse=True)
    if len(names) < 2 or np.bincount(y).min() < 2:
        raise InvalidData("labelled pictures need at least two classes, each with at least two pictures.")
    space = Embedding.plain(pictures.shape[1]) if network is None else head_space(network)[0]
    named = tuple(str(name) for name in names)
    return _of_classes(space, space(pictures), y, epsilon, shared=None, labels=None, names=named)


def from_labels(rows: Array, labels: Array, epsilon: float, *, n_cells: int | None = None) -> Codebook:
    """Cells from features (n, d) of public images and an indicator (n, C) of their labels, without a network.

    With one label each they are the classes; with several, groups of label sets by Ward's clustering.
    """
    pictures = _enough(rows, 2)
    space = Embedding.plain(pictures.shape[1]).around(pictures)
    points = space(pictures)
    if (labels.sum(axis=1) == 1).all():
        _, y = np.unique(labels.argmax(axis=1), return_inverse=True)
        return _of_classes(space, points, y, epsilon, shared=None, labels=None)
    wanted = n_cells or min(number_of_cells(epsilon), MOST_CELLS, len(labels) // _EACH_GROUP)
    y = ward_groups(labels.astype(np.float32), max(2, wanted))
    member = np.eye(int(y.max()) + 1, dtype=np.float32)[y]
    pairs = member.T @ (labels @ labels.T > 0).astype(np.float32) @ member
    shared = pairs / np.outer(member.sum(axis=0), member.sum(axis=0))
    return _of_classes(space, points, y, epsilon, shared=shared.astype(np.float32), labels=labels)


def _of_classes(
    space: Embedding,
    points: Floats,
    y: NDArray[np.int64],
    epsilon: float,
    *,
    shared: Floats | None,
    labels: Array | None,
    names: tuple[str, ...] = (),
) -> Codebook:
    """A classifier of the pictures is the cells; which of its own pairs share a label says how relevance grows."""
    if y.max() < 1:
        raise InvalidData("labelled images need at least two classes.")
    fitted = _classifier(points, y)
    coefficients, intercept = fitted.coef_, fitted.intercept_
    if y.max() == 1:  # scikit-learn keeps one row for two classes
        coefficients, intercept = np.concatenate([-coefficients, coefficients]) / 2, np.r_[-intercept, intercept] / 2
    cells = ClassCells(coefficients.astype(np.float32), intercept.astype(np.float32), shared)
    some = np.arange(0, len(y), -(-len(y) // _MOST_PAIRED))
    same = y[some, None] == y[some] if labels is None else labels[some] @ labels[some].T > 0
    slope = _slope(points[some], y[some], same, shared, int(y.max()) + 1)
    return Codebook(space, cells, epsilon, "labelled pictures", slope, names)


def _enough(rows: Array, least: int) -> Floats:
    pictures = np.asarray(rows, dtype=np.float32)
    if pictures.ndim != 2 or len(pictures) < least:
        raise InvalidData(f"cells need at least {least} public pictures, got features of shape {pictures.shape}.")
    return pictures


def _of_atoms(atoms: Floats, wanted: int) -> Cells:
    """Groups of atoms; or pairs, where the budget pays for several cells per atom."""
    each = round(wanted / len(atoms))
    if each >= _PAIRS_FROM:
        return PairCells.of(atoms, min(each, len(atoms) - 1))
    return GroupCells(atoms, ward_groups(atoms, min(wanted, len(atoms))))


def _classifier(points: Floats, y: NDArray[np.int64]) -> Any:
    import warnings

    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not yet converged is good enough
        return LogisticRegression(C=_STRENGTH, max_iter=500).fit(points, y)


def _slope(points: Floats, y: NDArray[np.int64], same: NDArray[np.bool_], shared: Floats | None, classes: int) -> float:
    """How relevance grows with ln P(class | query), on pairs of pictures that the classifier had not seen."""
    from sklearn.linear_model import LogisticRegression

    folds = max(2, min(_FOLDS, int(np.bincount(y)[np.unique(y)].min())))
    number = np.zeros(len(y), dtype=np.int64)
    for label in np.unique(y):
        own = np.flatnonzero(y == label)
        number[own] = np.arange(len(own)) % folds
    log_classes = np.full((len(y), classes), -30.0)
    for fold in range(folds):
        seen, unseen = number != fold, number == fold
        if len(np.unique(y[seen])) > 1 and unseen.any():
            fitted = _classifier(points[seen], y[seen])
            log_classes[np.ix_(unseen, fitted.classes_)] = fitted.predict_log_proba(points[unseen])
    cells = log_classes.argmax(axis=1)
    similarity = np.maximum(log_classes, -30.0)
    if shared is not None:
        similarity = np.log(np.maximum(np.exp(similarity) @ shared, np.exp(-30.0)))
    apart = ~np.eye(len(y), dtype=bool)
    if same[apart].all() or not same[apart].any():
        return 1.0
    fitted = LogisticRegression(C=1e6).fit(similarity[:, cells][apart][:, None], same[apart])
    return float(max(fitted.coef_[0, 0], 1e-3))

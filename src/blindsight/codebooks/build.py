"""Codebooks from what is public, by one rule.

`build_codebook` takes the first of these that there is: a labelled folder, a folder of at least
100 pictures (or public vectors), the owner's own public names for what the photos show, the class
matrix of the encoder, general names through its text tower, public vectors.

All numbers here were chosen on Caltech-101's even classes, CIFAR-10 and COCO; the others are for
reporting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks.cells import (
    CellPartition,
    ClassCells,
    Embedding,
    GroupCells,
    LabelCells,
    PairCells,
    class_points,
    head_space,
    unit_rows,
    ward_groups,
)
from blindsight.codebooks.codebook import Codebook, Reading, number_of_cells
from blindsight.core.checks import core_module
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.encoders.base import Encoder
from blindsight.encoders.builtin import BuiltIn
from blindsight.encoders.embeddings import Embeddings, general_texts
from blindsight.encoders.public_pictures import typical_vectors
from blindsight.privacy.mechanisms import KaryResponse

__all__ = [
    "LEAST_PICTURES",
    "MOST_CELLS",
    "CellUse",
    "PublicKnowledge",
    "Space",
    "build_codebook",
    "cell_source",
    "even_use",
    "from_classes",
    "from_head",
    "from_labels",
    "from_pictures",
    "predict_use",
    "space_of",
    "text_points",
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


# With own names: below the first epsilon one cell per name; below the second, names and this many
# general atoms near each; from there on, names and all general atoms.
_NAMES_ALONE_BELOW, _NAMES_NEAR_BELOW, _NEAR_ATOMS, _MOST_NEAR_NAMES = 5.0, 8.0, 50, 200
_MOST_NAMES = 5000
# Search is called "at chance" by limits that were set by hand. A hit must be half as likely again
# to be right as a photo drawn by lot. Where at least so many pictures were looked at, they must use
# this many cells (by entropy), or this share of the cells where there are few: 400 X-rays used 10
# of 414 cells of the built-in network, and search among them was at chance.
_LEAST_GAIN, _JUDGED_FROM, _LEAST_USE, _LEAST_SHARE = 1.5, 50, 12.0, 0.25

CellSource = Literal[
    "labelled pictures", "pictures", "names", "classes", "general names", "public vectors"
]


@dataclass(frozen=True, eq=False)
class PublicKnowledge:
    """What the owner gives beside the encoder; all of it must be public.

    Parameters:
        rows: vectors (n, d) of public pictures by the same encoder, or None.
        labels: the class of each row, or None.
        names: public words for what the photos show ("forest", "glacier", "sea").
    """

    rows: Floats | None = None
    labels: Sequence[str] | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Space:
    """Where an encoder's cells live.

    Parameters:
        embedding: vectors to points.
        atoms: points of general knowledge: the encoder's classes or general names; None for
            encoders that have neither.
        own_centre: whether the atoms are texts, which are centred by their own mean.
    """

    embedding: Embedding
    atoms: Floats | None = None
    own_centre: bool = False


def cell_source(encoder: Encoder, public: PublicKnowledge) -> CellSource:
    """What the cells are made from: the first of the list that there is.

    Raises:
        InvalidParameter: There is nothing public to make cells from.
    """
    if public.rows is not None and public.labels is not None:
        return "labelled pictures"
    if public.rows is not None and (
        len(public.rows) >= LEAST_PICTURES or not _knows_anything(encoder, public)
    ):
        knows = _has_classes(encoder) or _has_texts(encoder)
        return "pictures" if knows else "public vectors"
    if isinstance(encoder, Embeddings):
        raise InvalidParameter(
            f"cells for vectors of {encoder.name} need public vectors of the same model, at least "
            "100 and better 1,000: give public embeddings (--public-embeddings)."
        )
    if public.names:
        return "names"
    if _has_classes(encoder):
        return "classes"
    if _has_texts(encoder):
        return "general names"
    raise InvalidParameter(
        f"{encoder.name} has neither classes nor texts, so its cells need public vectors of the "
        "same model, at least 100 and better 1,000: give public pictures or public embeddings."
    )


def build_codebook(
    encoder: Encoder,
    epsilon: float,
    public: PublicKnowledge | None = None,
    *,
    n_cells: int | None = None,
    first_page: bool = False,
) -> Codebook:
    """Cells for an encoder from whatever is public, and the budget to release one with.

    Parameters:
        encoder: what turns images into vectors.
        epsilon: the budget per image.
        public: what the owner gives beside the encoder.
        n_cells: the number of cells; by default `number_of_cells` of the budget.
        first_page: only for an encoder's classes: more cells, for better first hits.

    Raises:
        InvalidData: A public folder is too small, or its labels do not fit.
        InvalidParameter: There is nothing public to make cells from.

    Examples:
        >>> from blindsight.encoders import built_in
        >>> rows = np.random.default_rng(0).random((120, 768), np.float32)
        >>> build_codebook(built_in("pixels"), 4.0, PublicKnowledge(rows)).k
        29
    """
    public = public or PublicKnowledge()
    source, space = cell_source(encoder, public), space_of(encoder, public.rows)
    if source == "labelled pictures" and public.rows is not None and public.labels is not None:
        return _from_classes(public.rows, public.labels, epsilon, space)
    if source in ("pictures", "public vectors") and public.rows is not None:
        return _from_pictures(public.rows, epsilon, space, n_cells=n_cells)
    if source == "names":
        return _from_names(encoder, space, public.names, epsilon, n_cells=n_cells)
    atoms = space.atoms
    if atoms is None:
        raise InvalidParameter(f"{encoder.name} offers no general knowledge to make cells from.")
    return _from_atoms(space, atoms, epsilon, n_cells=n_cells, first_page=first_page)


def space_of(encoder: Encoder, rows: Floats | None = None) -> Space:
    """The space of an encoder's cells; `rows` are vectors of public pictures, to centre on."""
    if isinstance(encoder, BuiltIn):
        if encoder.network is None:
            return Space(Embedding.plain(encoder.dimensions))
        return Space(*head_space(encoder.network))
    classes = encoder.classes()
    if classes is not None:
        embedding = Embedding.of_head(classes.weights)
        return Space(embedding, class_points(embedding, classes.weights))
    plain = Embedding.plain(encoder.dimensions, row_mean=False)
    general = general_texts(encoder)
    if general is None:
        return Space(plain)
    pictures = rows if rows is not None else typical_vectors(encoder)
    centred = plain.around(pictures).around_texts(general)
    return Space(centred, centred.texts(general), own_centre=True)


def text_points(encoder: Encoder, embedding: Embedding, texts: Sequence[str]) -> Floats:
    """Points of texts in a codebook's space: for own names, and for words as queries.

    Raises:
        InvalidParameter: The encoder has neither a text tower nor classes.
    """
    vectors = encoder.texts(list(texts))
    if vectors is not None:
        return embedding.texts(vectors)
    from blindsight.encoders.words import class_weights

    classes = encoder.classes()
    if classes is None:
        raise InvalidParameter(
            f"{encoder.name} has neither a text tower nor the classes of a pretrained network, so "
            "it cannot be asked by words. Search with a picture or a vector."
        )
    own_classes = None if isinstance(encoder, BuiltIn) else classes.names
    weights = np.stack([class_weights(text, own_classes) for text in texts])
    return embedding.moved(unit_rows(weights @ class_points(embedding, classes.weights)))


@dataclass(frozen=True)
class CellUse:
    """How well cells tell pictures apart, before anything is charged.

    Parameters:
        basis: what was looked at: "public pictures", "photos of yours", or "photos that spread
            evenly" where nothing was.
        pictures: how many pictures were looked at; 0 for an even spread.
        cells: how many cells there are.
        used: how many of them hold a picture.
        effective: the number of equally full cells with the same entropy.
        truth: the probability that a released cell is the true one.
        hits: of the first ten hits for one of the pictures, how many are expected to come from
            its own cell.
        chance: the same for ten pictures drawn by lot.
        gain: how many times likelier a picture that is released under the query's cell is truly
            of that cell than one drawn by lot.
    """

    basis: str
    pictures: int
    cells: int
    used: int
    effective: float
    truth: float
    hits: float
    chance: float
    gain: float

    @property
    def at_chance(self) -> bool:
        """Whether search is expected to find little more than chance would.

        Few pictures say nothing, and are not judged.
        """
        if 0 < self.pictures < _JUDGED_FROM:
            return False
        least = min(_LEAST_USE, self.cells * _LEAST_SHARE)
        return self.gain < _LEAST_GAIN or self.effective < least

    def line(self) -> str:
        """One sentence for the owner."""
        looked_at = f"{self.pictures:,} {self.basis}" if self.pictures else self.basis
        text = (
            f"{looked_at} use {self.used:,} of {self.cells:,} cells; {self.hits:.1f} of the first "
            f"ten hits are expected to lie in the query's own cell ({self.chance:.2g} by chance)"
        )
        if self.at_chance:
            text += (
                ". These cells hardly tell them apart, so search would find little more than "
                "chance. Give public pictures of this kind, names for what they show, or a larger "
                "epsilon"
            )
        return f"{text}."


def predict_use(book: Codebook, rows: Array, *, basis: str = "public pictures") -> CellUse:
    """How many cells pictures like these use, and how many hits are expected.

    Parameters:
        book: the codebook.
        rows: vectors of public pictures, or of the owner's own if the owner agrees. The result is
            then for the owner and is not released.
        basis: what the rows are, for the sentence.
    """
    cells = book.assign(rows)
    return _use(book, np.bincount(cells, minlength=book.k).astype(np.float64), basis, len(cells))


def even_use(book: Codebook, records: int, noun: str = "photos") -> CellUse:
    """The same without any picture, for `records` photos (or what `noun` says they are) that spread
    evenly over the cells.
    """
    counts = np.full(book.k, records / book.k)
    return _use(book, counts, f"{noun} that spread evenly", 0)


def _use(book: Codebook, counts: NDArray[np.float64], basis: str, pictures: int) -> CellUse:
    total = max(float(counts.sum()), 1e-12)
    share = counts / total
    filled = share[share > 0]
    effective = float(np.exp(-(filled * np.log(filled)).sum()))
    truth = book.mechanism.truth_probability
    lie = (1 - truth) / (book.k - 1)
    # Records released under each cell, and those of them that truly lie there. Of the first ten
    # hits, as many come from the query's cell as there are released under it, and the rest by lot.
    own = truth * counts
    released = own + lie * (total - counts)
    first = np.minimum(released, 10.0)
    hits = first * own / np.maximum(released, 1e-12) + (10 - first) * share
    right = own / np.maximum(released, 1e-12)
    gain = right[share > 0] / filled
    return CellUse(
        basis,
        pictures,
        cells=book.k,
        used=int((counts > 0).sum()),
        effective=effective,
        truth=truth,
        hits=float((share * hits).sum()),
        chance=float(10 * (share**2).sum()),
        gain=float((filled * gain).sum()),
    )


def _has_classes(encoder: Encoder) -> bool:
    if isinstance(encoder, BuiltIn):
        return encoder.network is not None
    return encoder.classes() is not None


def _has_texts(encoder: Encoder) -> bool:
    if isinstance(encoder, Embeddings):
        return bool(encoder.text_names())
    return encoder.texts(["photo"]) is not None


def _knows_anything(encoder: Encoder, public: PublicKnowledge) -> bool:
    return bool(public.names) and (_has_classes(encoder) or _has_texts(encoder))


def _from_atoms(
    space: Space,
    atoms: Floats,
    epsilon: float,
    *,
    n_cells: int | None = None,
    first_page: bool = False,
) -> Codebook:
    rule = (
        number_of_cells(epsilon, "first page", most=len(atoms))
        if first_page
        else number_of_cells(epsilon)
    )
    source: Literal["names", "network"] = "names" if space.own_centre else "network"
    return Codebook(space.embedding, _of_atoms(atoms, n_cells or rule), epsilon, source)


def _from_names(
    encoder: Encoder,
    space: Space,
    names: Sequence[str],
    epsilon: float,
    *,
    n_cells: int | None = None,
) -> Codebook:
    """Cells from the owner's own public names, with general atoms where the budget pays for them.

    Reference:
        The thresholds were chosen on Caltech-101's odd classes.
    """
    words = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not 2 <= len(words) <= _MOST_NAMES:
        raise InvalidParameter(
            f"give 2 to {_MOST_NAMES:,} different names for what the photos show, got {len(words)}."
        )
    points = text_points(encoder, space.embedding, words)
    wanted = n_cells or number_of_cells(epsilon)
    if epsilon < _NAMES_ALONE_BELOW or space.atoms is None:
        # Twice the usual number: names are what the photos show, so no cell is wasted.
        k = n_cells or min(len(points), 2 * wanted)
        cells: CellPartition = GroupCells(points, ward_groups(points, k))
    elif epsilon < _NAMES_NEAR_BELOW:
        near = np.unique(np.argsort(-(points @ space.atoms.T), axis=1)[:, :_NEAR_ATOMS])
        atoms = np.concatenate([points, space.atoms[near]])
        cells = _of_atoms(atoms, n_cells or min(wanted, _MOST_NEAR_NAMES))
    else:
        cells = _of_atoms(np.concatenate([points, space.atoms]), wanted)
    return Codebook(space.embedding, cells, epsilon, "names")


def from_head(
    network: str, epsilon: float, *, n_cells: int | None = None, first_page: bool = False
) -> Codebook:
    """Cells from the 1,000 classes of a pretrained network: nothing but public weights.

    `first_page` trades the order of the whole list for the first ten hits: more cells at the same
    epsilon.
    """
    space = Space(*head_space(network))
    if space.atoms is None:
        raise InvalidParameter(f"{network} has no classes.")
    return _from_atoms(space, space.atoms, epsilon, n_cells=n_cells, first_page=first_page)


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
    return _from_pictures(
        pictures, epsilon, _space(network, pictures), n_cells=n_cells, least=least
    )


def _space(network: str | None, pictures: Floats) -> Space:
    return (
        Space(Embedding.plain(pictures.shape[1]))
        if network is None
        else Space(*head_space(network))
    )


def _from_pictures(
    rows: Array,
    epsilon: float,
    space: Space,
    *,
    n_cells: int | None = None,
    least: int = LEAST_PICTURES,
) -> Codebook:
    pictures = _enough(rows, least)
    embedding = space.embedding.around(pictures)
    atoms = embedding(pictures)
    moved = space.atoms
    if moved is not None and not space.own_centre:  # texts are centred by their own mean
        moved = embedding.moved(moved)
    if moved is not None:
        near = np.unique(np.argsort(-(atoms @ moved.T), axis=1)[:, :_NEAR_CLASSES])
        atoms = np.concatenate([atoms, _drawn(moved[near], atoms)])
    wanted = n_cells or number_of_cells(epsilon)
    if wanted / len(atoms) < _PAIRS_FROM:
        wanted = n_cells or min(wanted, MOST_CELLS if moved is None else _MOST_WITH_CLASSES)
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
    pictures = _enough(rows, 4)
    return _from_classes(pictures, labels, epsilon, _space(network, pictures))


def _from_classes(
    rows: Array, labels: Sequence[Any] | Array, epsilon: float, public: Space
) -> Codebook:
    pictures, classes = _enough(rows, 4), np.asarray(labels)
    if classes.shape != (len(pictures),):
        raise InvalidData(f"give one class per picture: got {classes.shape} for {len(pictures)}.")
    names, y = np.unique(classes, return_inverse=True)
    if len(names) < 2 or np.bincount(y).min() < 2:
        raise InvalidData(
            "labelled pictures need at least two classes, each with at least two pictures."
        )
    space = public.embedding
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
            f"cells need at least {least} public pictures, got features of shape {pictures.shape}. "
            "Add pictures, or leave the folder out and give names for what the photos show."
        )
    return pictures


def _of_atoms(atoms: Floats, wanted: int) -> CellPartition:
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

    LogisticRegression = core_module("sklearn.linear_model").LogisticRegression

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
            occurring, y = np.unique(labels.argmax(axis=1), return_inverse=True)
            if len(occurring) > 1:
                fitted = LogisticRegression(C=_STRENGTH, max_iter=500).fit(points, y)
                two = len(occurring) == 2  # scikit-learn keeps one row for two classes
                coefficients[occurring] = (
                    np.concatenate([-fitted.coef_, fitted.coef_]) / 2 if two else fitted.coef_
                )
                intercept[occurring] = (
                    np.r_[-fitted.intercept_, fitted.intercept_] / 2 if two else fitted.intercept_
                )
            else:
                intercept[occurring] = 0.0
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
    minimize_scalar = core_module("scipy.optimize").minimize_scalar

    own = np.eye(cells.k, dtype=np.float32)[cells.nearest(answers)]
    shared = (labels @ labels.T > 0).astype(np.float32)
    np.fill_diagonal(shared, 0)  # no picture is a pair with itself
    others = shared.sum(axis=1, keepdims=True)
    # Pairs with one picture and all pictures of one cell have one similarity: they are counted, not
    # listed.
    same = shared @ own
    different = own.sum(axis=0) - own - same
    if not same.any() or not different.any():
        return 1.0
    # With few of a class, the picture that is left out is missed; among many stored images it would
    # not be.
    same *= (others + 1) / np.maximum(others, 1)
    similarity, prior = cells.likely(answers), own.mean(axis=0, dtype=np.float64)
    often = float(same.sum() / (same.sum() + different.sum()))

    def surprise(log_slope: float) -> float:
        relevance = Reading(prior, 1.0, often, math.exp(log_slope)).relevance(similarity)
        relevance = np.clip(relevance, _SELDOM, 1 - _SELDOM)
        return -float((same * np.log(relevance) + different * np.log(1 - relevance)).sum())

    fitted = minimize_scalar(surprise, bounds=_SLOPES, method="bounded", options={"xatol": 0.01})
    return math.exp(fitted.x)

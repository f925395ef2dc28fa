"""Build a codebook from public data.

`build_codebook` uses the first of these sources that is available: a labelled folder of public
pictures; a folder of at least 100 public pictures (or public vectors); the owner's own public names
for what the photos show; the classes of the encoder; general names through its text tower.

All constants of this module were chosen on the even classes of Caltech-101, on CIFAR-10 and on
COCO. The other datasets are only used for reporting.
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

#: With fewer pictures, the cells are worse than cells from the network's classes alone.
LEAST_PICTURES = 100
# Cells are pairs of atoms if the budget allows at least this many cells per atom.
_MIN_CELLS_PER_ATOM_FOR_PAIRS = 6
#: With more cells made from pictures alone, the noise outweighs the finer partition.
MOST_CELLS = 150
_MAX_CELLS_WITH_CLASSES = 200  # the same limit if classes of a network are among the atoms
# How many near classes each picture adds, and the temperature by which classes move to pictures.
_CLASSES_PER_PICTURE, _CLASS_TEMPERATURE = 5, 0.1
# C of the logistic regression on unit rows: with one class, and with several labels per picture.
_CLASS_C, _LABEL_C, _CROSS_VALIDATION_FOLDS = 25.0, 10.0, 5
_MAX_PAIRED_PICTURES = 1500  # from which groups and the slope of relevance are learned
# Public pictures per group of answers: with one class, and with several labels per picture.
_MIN_PICTURES_PER_CLASS_GROUP, _MIN_PICTURES_PER_LABEL_GROUP = 40, 12
# Classes are divided into groups only if a released group is the true one with this probability.
_MIN_TRUTH_PROBABILITY = 0.9
# The interval in which the logarithm of the slope is searched, and the bound that keeps fitted
# probabilities away from 0 and 1.
_LOG_SLOPE_BOUNDS, _MIN_PROBABILITY = (math.log(1e-3), math.log(30.0)), 1e-6

# Cells from the owner's names: below the first epsilon from the names alone; below the second from
# the names and the general atoms nearest to each; otherwise from the names and all general atoms.
_NAMES_ALONE_BELOW_EPSILON, _NEAR_ATOMS_BELOW_EPSILON = 5.0, 8.0
_ATOMS_PER_NAME, _MAX_CELLS_WITH_NEAR_ATOMS, _MAX_NAMES = 50, 200, 5000
# Limits, set by hand, below which search is reported as "at chance". A hit must be 1.5 times as
# likely to be right as a randomly drawn photo. If at least 50 pictures were examined, the
# effective number of cells they use (by entropy) must be at least 12, or a quarter of all cells
# if that is less: 400 X-rays used 10 of 414 cells of the built-in network, and search among them
# was at chance.
_MIN_GAIN, _MIN_EXAMINED_PICTURES, _MIN_EFFECTIVE_CELLS, _MIN_EFFECTIVE_SHARE = 1.5, 50, 12.0, 0.25

CellSource = Literal[
    "labelled pictures", "pictures", "names", "classes", "general names", "public vectors"
]


@dataclass(frozen=True, eq=False)
class PublicKnowledge:
    """What the owner provides besides the encoder. All of it must be public.

    Parameters:
        rows: Vectors (n, d) of public pictures, computed by the same encoder, or None.
        labels: The class of each row, or None.
        names: Public words for what the photos show ("forest", "glacier", "sea").
    """

    rows: Floats | None = None
    labels: Sequence[str] | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Space:
    """The space in which the cells of an encoder are defined.

    Parameters:
        embedding: Maps the encoder's vectors to points of this space.
        atoms: Points of general knowledge: the encoder's classes, or general names. None for
            encoders that have neither.
        own_centre: Whether the atoms are texts, which are centred by their own mean.
    """

    embedding: Embedding
    atoms: Floats | None = None
    own_centre: bool = False


def cell_source(encoder: Encoder, public: PublicKnowledge) -> CellSource:
    """The source of the cells: the first of the module's list that is available.

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
    """Build the codebook of an encoder from the first public source that is available.

    Parameters:
        encoder: The encoder that turns images into vectors.
        epsilon: The privacy budget per image.
        public: What the owner provides besides the encoder.
        n_cells: The number of cells. By default `number_of_cells` derives it from epsilon.
        first_page: Use more cells, for better first hits. Only for cells from an encoder's
            classes or general names.

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
    """The space of an encoder's cells. A text tower is centred on public pictures (`rows`)."""
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
    """Points of texts in a codebook's space, for the owner's names and for queries by words.

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
            "it cannot be searched by words. Search with a picture or a vector."
        )
    own_classes = None if isinstance(encoder, BuiltIn) else classes.names
    weights = np.stack([class_weights(text, own_classes) for text in texts])
    return embedding.moved(unit_rows(weights @ class_points(embedding, classes.weights)))


@dataclass(frozen=True)
class CellUse:
    """How well cells distinguish pictures. It is computed before anything is charged.

    Parameters:
        basis: What was examined: "public pictures", "photos of yours", or "photos that spread
            evenly" if no picture was.
        pictures: How many pictures were examined; 0 for an even spread.
        cells: The number of cells.
        used: How many of them contain a picture.
        effective: The number of equally full cells with the same entropy.
        truth: The probability that a released cell is the true one.
        hits: The expected number among the first ten hits for one of the pictures that come from
            its own cell.
        chance: The same number for ten pictures drawn at random.
        gain: The probability that a picture released under the query's cell truly belongs to it,
            divided by the same probability for a picture drawn at random.
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
        """Whether search is expected to find little more than a random choice would.

        The answer is False if too few pictures were examined to decide.
        """
        if 0 < self.pictures < _MIN_EXAMINED_PICTURES:
            return False
        least = min(_MIN_EFFECTIVE_CELLS, self.cells * _MIN_EFFECTIVE_SHARE)
        return self.gain < _MIN_GAIN or self.effective < least

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
    """Predict how many cells pictures like these use, and how many hits to expect.

    Parameters:
        book: The codebook.
        rows: Vectors of public pictures, or of the owner's own pictures if the owner agrees. The
            result is then for the owner only and is not released.
        basis: What the rows are, for the sentence of `CellUse.line`.
    """
    cells = book.assign(rows)
    return _use(book, np.bincount(cells, minlength=book.k).astype(np.float64), basis, len(cells))


def even_use(book: Codebook, records: int, noun: str = "photos") -> CellUse:
    """Predict the use of the cells without any picture, for records that spread evenly over them.

    `noun` is what the records are called in the sentence of `CellUse.line`.
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
    # Expected numbers of records released under each cell, and of those that truly belong to it.
    # The first ten hits are records released under the query's cell; if there are fewer than ten,
    # the others are drawn at random.
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
    """Build cells from the owner's public names, and from general atoms if epsilon allows it.

    Reference:
        The thresholds were chosen on Caltech-101's odd classes.
    """
    words = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not 2 <= len(words) <= _MAX_NAMES:
        raise InvalidParameter(
            f"give 2 to {_MAX_NAMES:,} different names for what the photos show, got {len(words)}."
        )
    points = text_points(encoder, space.embedding, words)
    wanted = n_cells or number_of_cells(epsilon)
    if epsilon < _NAMES_ALONE_BELOW_EPSILON or space.atoms is None:
        # Twice the usual number: the names say what the photos show, so no cell stays empty.
        k = n_cells or min(len(points), 2 * wanted)
        cells: CellPartition = GroupCells(points, ward_groups(points, k))
    elif epsilon < _NEAR_ATOMS_BELOW_EPSILON:
        near = np.unique(np.argsort(-(points @ space.atoms.T), axis=1)[:, :_ATOMS_PER_NAME])
        atoms = np.concatenate([points, space.atoms[near]])
        cells = _of_atoms(atoms, n_cells or min(wanted, _MAX_CELLS_WITH_NEAR_ATOMS))
    else:
        cells = _of_atoms(np.concatenate([points, space.atoms]), wanted)
    return Codebook(space.embedding, cells, epsilon, "names")


def from_head(
    network: str, epsilon: float, *, n_cells: int | None = None, first_page: bool = False
) -> Codebook:
    """Build cells from the 1,000 classes of a pretrained network, whose weights are public.

    Parameters:
        network: The name of a built-in network.
        epsilon, n_cells: As for `build_codebook`.
        first_page: Use more cells at the same epsilon. The first ten hits get better, the order
            of the whole list gets worse.
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
    """Build cells from public pictures of the domain and from the network's classes near them.

    Parameters:
        rows: Features (n, d) of the public pictures.
        epsilon, n_cells: As for `build_codebook`.
        network: The built-in network that computed the features, or None for pixels, where the
            pictures alone are the atoms.
        least: The number of pictures that are required; with fewer, `InvalidData` is raised.
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
        near = np.unique(np.argsort(-(atoms @ moved.T), axis=1)[:, :_CLASSES_PER_PICTURE])
        atoms = np.concatenate([atoms, _drawn(moved[near], atoms)])
    wanted = n_cells or number_of_cells(epsilon)
    if wanted / len(atoms) < _MIN_CELLS_PER_ATOM_FOR_PAIRS:
        wanted = n_cells or min(wanted, MOST_CELLS if moved is None else _MAX_CELLS_WITH_CLASSES)
    return Codebook(embedding, _of_atoms(atoms, wanted), epsilon, "pictures")


def _drawn(classes: Floats, pictures: Floats) -> Floats:
    """Move each class half-way to the pictures near it, to approximate it in this domain."""
    weight = np.exp((classes @ pictures.T) / np.float32(_CLASS_TEMPERATURE))
    return unit_rows(classes + (weight / weight.sum(axis=1, keepdims=True)) @ pictures)


def from_classes(
    rows: Array, labels: Sequence[Any] | Array, epsilon: float, *, network: str | None
) -> Codebook:
    """Build cells from public pictures with one class each: the answers of a classifier.

    From pairs of these pictures it is learned how relevance grows with similarity, so that hits
    get a probability of relevance.

    Parameters:
        rows: Features (n, d) of the public pictures.
        labels: The class of each picture.
        epsilon: The privacy budget per image.
        network: The built-in network that computed the features, or None for pixels.

    Raises:
        InvalidData: There are fewer than two classes, or a class has fewer than two pictures.
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
    """Build cells, without a network, from public images that may have several labels each.

    `rows` are features (n, d) of the images, and `labels` is an indicator matrix (n, C).
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
    """Use a classifier's answers as cells, or groups of answers if epsilon and data allow more.

    The groups, and how relevance grows with similarity, are learned from cross-validated answers,
    because the classifier will not have been trained on the stored images either.
    """
    if labels.shape[1] < 2:
        raise InvalidData("labelled images need at least two classes.")
    kind = ClassCells if (labels.sum(axis=1) == 1).all() else LabelCells
    cells = kind(*_classifier(points, labels))
    unseen = _cross_validated_answers(points, labels, kind)
    some = np.arange(0, len(labels), -(-len(labels) // _MAX_PAIRED_PICTURES))
    most = min(
        MOST_CELLS,
        len(labels)
        // (_MIN_PICTURES_PER_CLASS_GROUP if kind is ClassCells else _MIN_PICTURES_PER_LABEL_GROUP),
    )
    wanted = n_cells or number_of_cells(epsilon, "few", most=most)
    if kind is LabelCells or (
        wanted > cells.k and _truth_probability(epsilon, wanted) > _MIN_TRUTH_PROBABILITY
    ):
        cells = kind(cells.coefficients, cells.intercept, _group_means(unseen[some], wanted))
    slope = _slope(cells, unseen[some], labels[some])
    return Codebook(space, cells, epsilon, "labelled pictures", slope, names)


def _truth_probability(epsilon: float, k: int) -> float:
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
    """Cells that are groups of atoms, or pairs if several cells per atom are wanted."""
    each = round(wanted / len(atoms))
    if each >= _MIN_CELLS_PER_ATOM_FOR_PAIRS:
        return PairCells.of(atoms, min(each, len(atoms) - 1))
    return GroupCells(atoms, ward_groups(atoms, min(wanted, len(atoms))))


def _classifier(points: Floats, labels: Floats) -> tuple[Floats, Floats]:
    """Coefficients and intercepts of a logistic regression on an indicator matrix of labels.

    The regression is multinomial if each picture has one class; otherwise there is a binary
    regression for each label.
    """
    import warnings

    LogisticRegression = core_module("sklearn.linear_model").LogisticRegression

    several = not (labels.sum(axis=1) == 1).all()
    coefficients, intercept = (
        np.zeros((labels.shape[1], points.shape[1])),
        np.full(labels.shape[1], -30.0),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A fit that has not converged is good enough.
        if several:
            for label in np.flatnonzero(labels.any(axis=0) & ~labels.all(axis=0)):
                fitted = LogisticRegression(C=_LABEL_C, max_iter=100).fit(points, labels[:, label])
                coefficients[label], intercept[label] = fitted.coef_[0], fitted.intercept_[0]
            intercept[labels.all(axis=0)] = 30.0
        else:
            occurring, y = np.unique(labels.argmax(axis=1), return_inverse=True)
            if len(occurring) > 1:
                fitted = LogisticRegression(C=_CLASS_C, max_iter=500).fit(points, y)
                two = len(occurring) == 2  # scikit-learn stores one row for two classes.
                coefficients[occurring] = (
                    np.concatenate([-fitted.coef_, fitted.coef_]) / 2 if two else fitted.coef_
                )
                intercept[occurring] = (
                    np.r_[-fitted.intercept_, fitted.intercept_] / 2 if two else fitted.intercept_
                )
            else:
                intercept[occurring] = 0.0
    return coefficients.astype(np.float32), intercept.astype(np.float32)


def _cross_validated_answers(points: Floats, labels: Floats, kind: type[ClassCells]) -> Floats:
    """Cross-validated answers: each picture's classifier was not trained on that picture.

    The folds are stratified if each picture has one class.
    """
    folds = _CROSS_VALIDATION_FOLDS if len(labels) <= _MAX_PAIRED_PICTURES else 3
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
    """The maximum-likelihood slope of `Reading.relevance`.

    The observations are pairs of a picture and the cell of another picture's answer; the outcome
    is whether the two pictures share a label.
    """
    minimize_scalar = core_module("scipy.optimize").minimize_scalar

    own = np.eye(cells.k, dtype=np.float32)[cells.nearest(answers)]
    shared = (labels @ labels.T > 0).astype(np.float32)
    np.fill_diagonal(shared, 0)  # A picture is no pair with itself.
    others = shared.sum(axis=1, keepdims=True)
    # All pairs of one picture with pictures of one cell have the same similarity, so it is enough
    # to count them.
    same = shared @ own
    different = own.sum(axis=0) - own - same
    if not same.any() or not different.any():
        return 1.0
    # Leaving out the picture itself lowers the counts of a small class. Among many stored images
    # it would not, so the counts are corrected.
    same *= (others + 1) / np.maximum(others, 1)
    similarity, prior = cells.likely(answers), own.mean(axis=0, dtype=np.float64)
    often = float(same.sum() / (same.sum() + different.sum()))

    def surprise(log_slope: float) -> float:
        relevance = Reading(prior, 1.0, often, math.exp(log_slope)).relevance(similarity)
        relevance = np.clip(relevance, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
        return -float((same * np.log(relevance) + different * np.log(1 - relevance)).sum())

    fitted = minimize_scalar(
        surprise, bounds=_LOG_SLOPE_BOUNDS, method="bounded", options={"xatol": 0.01}
    )
    return math.exp(fitted.x)

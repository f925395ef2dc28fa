from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blindsight
from blindsight.codebooks import (
    CELL,
    Codebook,
    Reading,
    from_classes,
    from_head,
    from_pictures,
    number_of_cells,
)
from blindsight.codebooks.build import from_labels
from blindsight.codebooks.cells import (
    ClassCells,
    Embedding,
    GroupCells,
    PairCells,
    class_points,
    head_space,
    unit_rows,
    ward_groups,
)
from blindsight.codebooks.codebook import all_lies, prior_from_counts
from blindsight.core import storage
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.encoders.network import available
from blindsight.evaluation.retrieval import score_precisions
from blindsight.privacy import Door

RNG = np.random.default_rng(3)
needs_weights = pytest.mark.skipif(
    not available("lite0"), reason="the weights of lite0 are not installed"
)


def blobs(
    classes: int = 4, each: int = 40, d: int = 24, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, d)) * 2
    y = np.repeat(np.arange(classes), each)
    return (centres[y] + rng.normal(size=(len(y), d))).astype(np.float32), y


@functools.cache
def books() -> list[Codebook]:
    """One of each kind; nobody changes them."""
    X, y = blobs()
    return [
        from_pictures(X, 4, network=None),
        from_pictures(X, 12, network=None),
        from_classes(X, y, 4, network=None),
        from_labels(X, np.stack([y < 2, y % 2 == 0, y > 0], axis=1).astype(np.float32), 8),
    ]


def doubtful(each: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that overlap: many images could be of two."""
    y = np.repeat(np.arange(3), each)
    noise = np.random.default_rng(seed).normal(size=(len(y), 8))
    return (np.eye(8)[y] * 2.5 + noise).astype(np.float32), y


@needs_weights
@pytest.mark.parametrize(
    ("epsilon", "kind", "k"), [(2, "groups", 8), (8, "groups", 414), (12, "pairs", 6000)]
)
def test_cells_follow_the_budget(epsilon: float, kind: str, k: int) -> None:
    book = from_head("lite0", epsilon)
    assert (book.cells.kind, book.k) == (kind, k)


@needs_weights
def test_a_first_page_takes_every_class_for_a_cell() -> None:
    assert from_head("lite0", 8, first_page=True).k == 1000


@pytest.mark.parametrize("number", range(3))
def test_a_query_fits_its_own_cell_better_than_others(number: int) -> None:
    book = books()[number]
    X, _ = blobs(seed=1)
    cells, fit = book.assign(X), book.similarity(X)
    assert fit.shape == (len(X), book.k) and np.isfinite(fit).all()
    own = fit[np.arange(len(X)), cells]
    assert (own >= np.quantile(fit, 0.9, axis=1)).mean() > 0.9


def test_similarity_of_a_group_is_the_soft_maximum_over_its_atoms() -> None:
    atoms = unit_rows(RNG.normal(size=(12, 5)))
    group = np.array([0, 2, 1, 1, 0, 2, 2, 3, 3, 0, 1, 2])
    q = unit_rows(RNG.normal(size=(3, 5)))
    fit = GroupCells(atoms, group).similarity(q)
    for g in range(4):
        expected = 0.1 * np.log(np.exp(q @ atoms[group == g].T / 0.1).mean(axis=1))
        np.testing.assert_allclose(fit[:, g], expected, atol=1e-4)


def test_pairs_are_the_nearest_atom_and_what_matches_the_rest() -> None:
    atoms = unit_rows(RNG.normal(size=(9, 6)))
    cells = PairCells.of(atoms, 4)
    points = unit_rows(RNG.normal(size=(20, 6)))
    for x, cell in zip(points, cells.assign(points), strict=True):
        first, place = divmod(int(cell), 4)
        assert first == (atoms @ x).argmax()
        near = np.argsort(-(atoms @ atoms[first] - 10 * (np.arange(9) == first)))[:4]
        rest = x - (x @ atoms[first]) * atoms[first]
        assert cells.neighbours[first, place] == near[(atoms[near] @ rest).argmax()]
    both = unit_rows((atoms[:, None] + 0.6 * atoms[cells.neighbours]).reshape(-1, 6))
    np.testing.assert_allclose(cells.similarity(points), points @ both.T, atol=1e-5)


def test_ward_groups_are_numbered_without_gaps() -> None:
    group = ward_groups(unit_rows(RNG.normal(size=(30, 4))), 7)
    assert sorted(set(group.tolist())) == list(range(7)) and group[0] == 0
    assert ward_groups(unit_rows(RNG.normal(size=(3, 4))), 7).tolist() == [0, 1, 2]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 30), st.floats(0.5, 12), st.integers(0, 10**6))
def test_the_prior_is_a_distribution_and_never_less_likely_than_equal_shares(
    k: int, eps: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    counts = np.bincount(rng.integers(0, max(1, k // 2), 200), minlength=k)
    truth = 1 / (1 + (k - 1) * np.exp(-eps))
    prior = prior_from_counts(counts, truth=truth, k=k)
    assert (prior >= 0).all() and np.isclose(prior.sum(), 1)
    lie = (1 - truth) / (k - 1)

    def likelihood(p: np.ndarray) -> float:
        return float(counts @ np.log((truth - lie) * p + lie))

    assert likelihood(prior) >= likelihood(np.full(k, 1 / k)) - 1e-9  # EM never goes down


def test_the_prior_finds_the_true_shares() -> None:
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    truth = 0.7
    counts = 1e6 * ((truth - 0.1) * shares + 0.1)
    np.testing.assert_allclose(prior_from_counts(counts, truth=truth, k=4), shares, atol=0.01)


def test_shares_of_groups_of_cells_are_found_too() -> None:
    shares, truth, k = np.array([0.7, 0.2, 0.1]), 0.8, 30
    lie = 0.2 / 29
    counts = 1e6 * ((truth - lie) * shares + 10 * lie)
    np.testing.assert_allclose(prior_from_counts(counts, truth=truth, k=k), shares, atol=0.01)


def test_scores_are_the_posterior_of_relevance() -> None:
    """By enumeration: true cell from the prior, released by the mechanism, relevant by its cell."""
    prior, truth = np.array([0.4, 0.1, 0.3, 0.2]), 0.6
    reading = Reading(prior, truth, relevant=0.2, slope=3.0)
    fit = RNG.normal(size=(2, 4))
    relevant = reading.relevance(fit)
    np.testing.assert_allclose(relevant @ prior, 0.2, atol=2e-3)
    release = np.full((4, 4), reading.lie) + (truth - reading.lie) * np.eye(4)  # [true, released]
    joint = prior[:, None] * release
    expected = relevant @ (joint / joint.sum(axis=0))
    # The score takes the average over *all* cells for a lie; by enumeration the same up to the own
    # cell's lie share.
    np.testing.assert_allclose(reading.scores(fit), expected, atol=0.01)
    np.testing.assert_allclose(reading.trust, np.diag(joint) / joint.sum(axis=0))


def test_trust_is_how_often_the_stored_cell_is_the_true_one() -> None:
    X, _ = blobs(each=4000)
    book = from_pictures(blobs(seed=5)[0], 3, network=None)
    true = book.assign(X)
    released = book.mechanism.release(true, rng=np.random.default_rng(0))
    trust = book.reading(np.bincount(released, minlength=book.k)).trust
    for cell in range(book.k):
        here = released == cell
        if here.sum() > 300:
            assert abs((true[here] == cell).mean() - trust[cell]) < 0.08


def test_a_labelled_folder_calibrates_the_probability_of_relevance() -> None:
    folder, labels = blobs(6, 12, seed=7)
    book = from_classes(folder, labels, 6, network=None)
    assert book.calibrated and not from_pictures(blobs()[0], 4, network=None).calibrated
    X, y = blobs(6, 120, seed=8)
    Q, yq = blobs(6, 20, seed=9)
    released = book.mechanism.release(book.assign(X), rng=np.random.default_rng(0))
    scores = book.reading(np.bincount(released, minlength=book.k)).scores(book.similarity(Q))[
        :, released
    ]
    top = np.argsort(-scores, axis=1)[:, :10]
    shown = np.take_along_axis(scores, top, 1).mean()
    right = (y[top] == yq[:, None]).mean()
    assert abs(shown - right) < 0.1


def test_nothing_like_this_is_said_of_what_is_not_there_only() -> None:
    X, y = blobs(6, 200, seed=1)
    book = from_pictures(X, 8, network=None)
    there = y < 3
    released = book.mechanism.release(book.assign(X[there]), rng=np.random.default_rng(0))
    counts = np.bincount(released, minlength=book.k)
    present = book.reading(counts).present(book.similarity(X), counts)
    assert present[there].mean() > 0.95 and present[~there].mean() < 0.5


def test_the_release_goes_through_the_door_and_keeps_its_epsilon() -> None:
    X, _ = blobs()
    book = from_pictures(X, 4, network=None)
    guarantee = book.guarantee("seed")
    assert (
        guarantee.epsilon == 4 and guarantee.unit == "record" and guarantee.assumes("public cells")
    )
    codes = Door(guarantee, what="cells", random_state=1).release(CELL, book.assign(X))
    assert codes.shape == (len(X),) and codes.max() < book.k


@pytest.mark.parametrize("number", range(4))
def test_a_file_gives_the_same_codebook_back(number: int, tmp_path: Path) -> None:
    book = books()[number]
    book.save(tmp_path / "book")
    again = Codebook.load(tmp_path / "book")
    X, _ = blobs(seed=2)
    np.testing.assert_array_equal(again.assign(X), book.assign(X))
    np.testing.assert_array_equal(again.similarity(X), book.similarity(X))
    assert (again.epsilon, again.slope, again.classes, again.source) == (
        book.epsilon,
        book.slope,
        book.classes,
        book.source,
    )


@pytest.mark.parametrize("change", ["group", "atoms", "nan", "epsilon", "cells", "missing"])
def test_a_hostile_file_is_refused(change: str, tmp_path: Path) -> None:
    arrays, fields = books()[0].to_parts()
    if change == "group":
        arrays["group"] = arrays["group"] + 1
    elif change == "atoms":
        arrays["atoms"] = arrays["atoms"][:, :3]
    elif change == "nan":
        arrays["axes"] = arrays["axes"] * np.nan
    elif change == "epsilon":
        fields["epsilon"] = -1
    elif change == "cells":
        fields["cells"] = "rooms"
    else:
        del arrays["centre"]
    storage.save(tmp_path / "bad", kind="codebook", arrays=arrays, fields=fields)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(HostileFile):
            Codebook.load(tmp_path / "bad")


def test_too_few_public_pictures_are_refused_in_words() -> None:
    with pytest.raises(InvalidData, match="at least 100"):
        from_pictures(blobs(each=4)[0], 8, network=None)
    with pytest.raises(InvalidData, match="two classes"):
        from_classes(blobs()[0], np.zeros(160), 8, network=None)
    with pytest.raises(InvalidData, match="shape"):
        books()[0].assign(np.zeros((2, 3)))


def test_the_head_s_space_weighs_directions_by_the_cube_root_of_their_strength() -> None:
    head = RNG.normal(size=(40, 64)) * np.linspace(1, 3, 64)
    _, S, Vt = np.linalg.svd(head - head.mean(axis=0), full_matrices=False)
    x = np.abs(RNG.normal(size=(3, 64))).astype(np.float32)
    expected = unit_rows((x - x.mean(axis=1, keepdims=True)) @ (Vt.T * np.cbrt(S)))
    embedding = Embedding.of_head(head)
    # Axes without strength are left out, so compare inner products.
    np.testing.assert_allclose(embedding(x) @ embedding(x).T, expected @ expected.T, atol=1e-4)


def test_classes_lie_in_a_codebook_s_own_space_whatever_axes_this_machine_would_make() -> None:
    head = RNG.normal(size=(30, 16)).astype(np.float32)
    here = Embedding.of_head(head)
    signs = np.where(np.arange(here.axes.shape[1]) % 2, -1, 1).astype(np.float32)
    elsewhere = Embedding(here.axes * signs, here.centre)  # another machine's eigenvectors
    x = elsewhere(RNG.normal(size=(5, 16)))
    expected = (x * signs) @ class_points(here, head).T
    np.testing.assert_allclose(x @ class_points(elsewhere, head).T, expected, atol=1e-5)


@needs_weights
def test_a_network_s_classes_are_atoms_in_its_head_s_space() -> None:
    _, atoms = head_space("lite0")
    assert atoms.shape[0] == 1000 and np.allclose(np.linalg.norm(atoms, axis=1), 1, atol=1e-5)


def test_a_plain_space_is_the_direction_of_the_centred_row() -> None:
    x = RNG.normal(size=(4, 6)).astype(np.float32)
    np.testing.assert_allclose(
        Embedding.plain(6)(x), unit_rows(x - x.mean(axis=1, keepdims=True)), atol=1e-6
    )


def test_two_classes_are_enough() -> None:
    X, y = blobs(2, 30)
    book = from_classes(X, y, 2, network=None)
    assert isinstance(book.cells, ClassCells) and book.k == 2
    np.testing.assert_array_equal(book.assign(X), y)
    np.testing.assert_allclose(np.exp(book.similarity(X)).sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("way", ["many", "some", "few", "first page"])
def test_the_number_of_cells_never_falls_with_the_budget(way: Any) -> None:
    counts = [number_of_cells(e, way) for e in np.linspace(0.01, 40, 200)]
    assert counts[0] in (2, 4) and counts == sorted(counts)
    assert [number_of_cells(e, way, most=5) for e in (1e-3, 9.0)] == [min(5, counts[0]), 5]
    assert number_of_cells(9.0, way, most=0) == 2


def test_only_one_rule_chooses_how_many_cells_a_budget_pays_for() -> None:
    """Hashers, sketches, tags and photo indexes ask it; no module turns a budget into a number of
    cells by itself.
    """
    source = Path(blindsight.__file__).parent
    callers = {
        path.relative_to(source).parts[0]
        for path in source.rglob("*.py")
        if "number_of_cells(" in path.read_text(encoding="utf-8")
    }
    assert callers == {"codebooks", "hashing", "sketching", "tagging"}
    for path in (
        source / part
        for part in ("hashing/estimator.py", "sketching/estimator.py", "tagging/answer_codebook.py")
    ):
        assert "math.exp" not in path.read_text(encoding="utf-8"), path


def test_groups_of_answers_keep_the_doubt_that_classes_lose() -> None:
    """ "A cat, perhaps a dog" says more than "a cat": found by ranking with the cells themselves,
    without noise.
    """
    X, y = doubtful(400)
    stored, z = doubtful(150, seed=1)
    queries, q = doubtful(40, seed=2)
    book = from_classes(X, y, 8, network=None)
    assert isinstance(book.cells, ClassCells) and book.k == 30  # one for each 40 pictures
    alone = Codebook(book.embedding, ClassCells(book.cells.coefficients, book.cells.intercept), 8)

    def precision(one: Codebook) -> float:
        scores = one.similarity(queries)[:, one.assign(stored)]
        return float(score_precisions(scores, q[:, None] == z).mean())

    assert precision(book) > precision(alone) + 0.03


def test_classes_stay_whole_where_budget_or_pictures_do_not_pay_for_groups() -> None:
    X, y = doubtful(100)
    assert from_classes(X, y, 3, network=None).k == 3
    assert from_classes(X[::5], y[::5], 8, network=None).k == 3


@pytest.mark.parametrize(
    "groups", [np.full((5, 4), -0.5), np.full((5, 4), 2.0), np.full((5, 3), 0.5), np.ones(4)]
)
def test_groups_that_are_no_answers_are_refused(groups: np.ndarray) -> None:
    cells = books()[2].cells
    with pytest.raises(HostileFile):
        ClassCells(cells.coefficients, cells.intercept, groups.astype(np.float32))


def test_images_with_several_labels_share_at_least_one_as_often_as_said() -> None:
    book = books()[3]
    one, other = np.array([[0.5, 0.0, 1.0]], np.float32), np.array([[0.5, 1.0, 0.2]], np.float32)
    np.testing.assert_allclose(book.cells.sharing(one, other), [[1 - 0.75 * 0.8]], atol=1e-6)


def test_trust_is_true_on_average_and_not_shown_where_noise_prevails():
    """Shifted log-odds: over all records the mean is p, also where few records meet many cells."""
    few = np.random.default_rng(5).normal(size=(300, 12)).astype(np.float32)
    book = from_pictures(few[:200], 6.0, network=None, n_cells=120)
    true = book.assign(few)
    gaps = []
    for seed in range(40):
        released = book.mechanism.release(true, rng=np.random.default_rng(seed))
        trust = book.reading(np.bincount(released, minlength=book.k)).trust[released]
        assert trust.mean() == pytest.approx(book.mechanism.truth_probability, abs=1e-6)
        gaps.append((released == true).mean() - trust.mean())
    p = book.mechanism.truth_probability
    assert abs(np.mean(gaps)) < 6 * np.sqrt(p * (1 - p) / (40 * len(few)))


def test_trust_is_shown_only_where_it_was_found_to_be_true():
    """Truth told four times in five; or many records, and many per cell, to estimate the cells'
    shares from.
    """
    for truth, k, n, shown in (
        (0.81, 400, 10, True),
        (0.79, 400, 10_000, False),
        (0.66, 29, 1_160, True),
        (0.66, 29, 1_159, False),
        (0.51, 8, 999, False),
        (0.51, 8, 1_000, True),
    ):
        counts = np.bincount(np.arange(n) % k, minlength=k)
        reading = Reading(np.full(k, 1 / k), truth, counts=counts)
        assert (reading.shown_trust is not None) == shown, (truth, k, n)


def test_few_records_do_not_decide_how_far_their_cells_are_trusted():
    """With few records the estimated shares are mostly noise: of 60 records in 8 cells at epsilon 2
    the shown trust may not stray from what comes true. 400 runs: the mean gaps have deviations
    below .005, so .05 is missed by luck with probability below 1e-15 (with shares taken at their
    word the error is .09).
    """
    rng = np.random.default_rng(0)
    book = from_pictures(blobs(8, 30, seed=3)[0], 2.0, network=None, n_cells=8)
    shown, right = [], []
    for _ in range(400):
        true = rng.choice(8, size=60, p=rng.dirichlet(np.full(8, 4.0)))
        released = book.mechanism.release(true, rng=rng)
        shown.append(book.reading(np.bincount(released, minlength=8)).trust[released])
        right.append(released == true)
    told, came = np.concatenate(shown), np.concatenate(right)
    place = np.minimum((10 * told).astype(int), 9)
    error = sum(
        abs((told - came)[place == b].mean()) * (place == b).mean() for b in np.unique(place)
    )
    assert error < 0.05


def test_nothing_like_this_is_not_said_of_small_folders_or_small_budgets():
    """A class of a few photos among many cells: by counting cells with two records or more, four of
    ten queries were told "nothing" though their like was stored, and nine of ten with classes at
    epsilon 2.
    """
    X, y = blobs(20, 60, seed=1)
    labelled = np.arange(len(X)) % 60 < 5
    for book in (
        from_pictures(X[::3], 4.0, network=None),
        from_pictures(X[::3], 8.0, network=None),
        from_classes(X[labelled], y[labelled], 2.0, network=None),
        from_classes(X[labelled], y[labelled], 4.0, network=None),
    ):
        for each in (2, 6, 12):
            stored = (np.arange(len(X)) % 60 >= 48) & (np.arange(len(X)) % 60 < 48 + each)
            released = book.mechanism.release(
                book.assign(X[stored]), rng=np.random.default_rng(each)
            )
            counts = np.bincount(released, minlength=book.k)
            asked = X[np.arange(len(X)) % 60 < 5]
            assert book.reading(counts).present(book.similarity(asked), counts).mean() > 0.9


def test_words_are_told_nothing_only_where_nothing_is_far_and_wide():
    """The middle of what a word names fits its own cell far better than photos do: the cells beside
    it count too.
    """
    k = 40
    fit = np.full((2, k), 0.2)
    fit[:, 0] = 0.9
    fit[1, 1:] = -0.2
    counts = np.zeros(k, dtype=np.int64)
    counts[5] = 1000
    reading = Reading(np.full(k, 1 / k), 0.95)
    assert reading.present(fit, counts, words=True).tolist() == [False, False]
    fit[0, 5] = 0.45
    assert reading.present(fit, counts, words=True).tolist() == [True, False]
    assert reading.present(fit, counts).tolist() == [False, False]


def test_all_lies_is_the_posterior_by_integration():
    from scipy.integrate import quad
    from scipy.stats import poisson

    for found, lies, true in ((0, 0.5, 4.0), (3, 2.0, 4.0), (12, 8.0, 5.0), (40, 30.0, 2.0)):
        some, _ = quad(
            lambda m: poisson.pmf(found, lies + m) * np.exp(-m / true) / true,  # noqa: B023
            0,
            60 * true,
        )
        alone = poisson.pmf(found, lies)
        assert all_lies(found, lies, true) == pytest.approx(alone / (alone + some), rel=1e-6)
    assert all_lies(5, 1e-9, 0.0) == 0.5, "records that would not show say nothing"
    assert all_lies(1e6, 10.0, 1e4) < 1e-6

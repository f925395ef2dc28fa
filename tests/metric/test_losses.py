"""Losses and gradients against finite differences, autograd and naive sums; clipping bounds what
one pair can do.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindsight.core.errors import InvalidParameter
from blindsight.metric import Contrastive, Triplet, group_size, mean_dissimilar_distance
from blindsight.metric.losses import Gradients

SEEDS = st.integers(0, 2**31)


def make(kind, seed, n=12, d=5, margin=0.8):
    rng = np.random.default_rng(seed)
    if kind == "contrastive":
        return Contrastive(rng.normal(size=(n, d)) * 0.4, rng.random(n) < 0.5, margin=margin)
    return Triplet(rng.normal(size=(n, 3, d)) * 0.5, margin=margin)


KINDS = ["contrastive", "triplet"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_gradients_equal_central_differences(kind, seed):
    loss = make(kind, seed)
    W = np.random.default_rng(seed + 100).normal(size=(3, 5))
    numeric = np.empty((len(loss), *W.shape))
    step = 1e-6
    for r, c in np.ndindex(W.shape):
        moved = np.zeros_like(W)
        moved[r, c] = step
        numeric[:, r, c] = (loss.values(W + moved) - loss.values(W - moved)) / (2 * step)
    np.testing.assert_allclose(loss.gradients(W), numeric, atol=1e-7)


def torch_values(loss, W, torch):
    if isinstance(loss, Contrastive):
        distance = torch.linalg.norm(torch.tensor(loss.differences) @ W.T, dim=1)
        far = torch.tensor(loss.dissimilar)
        return 0.5 * torch.where(far, torch.clamp(loss.margin - distance, min=0), distance) ** 2
    f = torch.tensor(loss.tuples) @ W.T
    near, far = ((f[:, 0] - f[:, i]).square().sum(1) for i in (1, 2))
    return torch.clamp(loss.margin + near - far, min=0)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_autograd(kind):
    torch = pytest.importorskip("torch")
    loss = make(kind, 7, n=40)
    W = np.random.default_rng(8).normal(size=(4, 5))
    parameter = torch.tensor(W, requires_grad=True)
    values = torch_values(loss, parameter, torch)
    np.testing.assert_allclose(values.detach().numpy(), loss.values(W), atol=1e-12)
    values.sum().backward()
    np.testing.assert_allclose(loss.sum(W), parameter.grad.numpy(), atol=1e-10)


def test_equation_8_case_by_case():
    W = np.array([[2.0, 0.0], [0.0, 1.0]])
    dx = np.array([[0.3, 0.4]])
    product = np.outer(W @ dx[0], dx[0])
    distance = np.linalg.norm(W @ dx[0])
    similar = Contrastive(dx, np.array([False]), margin=1.0)
    near = Contrastive(dx, np.array([True]), margin=1.0)
    far = Contrastive(dx, np.array([True]), margin=0.5)
    np.testing.assert_allclose(similar.gradients(W)[0], product)
    np.testing.assert_allclose(near.gradients(W)[0], (distance - 1.0) / distance * product)
    assert not far.gradients(W).any()


def test_a_dissimilar_pair_of_equal_records_has_no_gradient():
    loss = Contrastive(np.zeros((1, 3)), np.array([True]), margin=1.0)
    assert not loss.gradients(np.eye(3)).any()
    assert np.isfinite(loss.clipped_sum(np.eye(3), 0.1)).all()


@given(
    SEEDS,
    st.sampled_from(KINDS),
    st.sampled_from([1, 2]),
    st.floats(0.01, 5.0),
    st.floats(0.01, 100.0),
)
@settings(max_examples=80, deadline=None)
def test_removing_one_pair_moves_the_clipped_sum_by_at_most_the_bound(
    seed, kind, order, bound, scale
):
    loss = make(kind, seed, n=6)
    W = np.random.default_rng(seed).normal(size=(3, 5)) * scale
    whole = loss.clipped_sum(W, bound, order=order)
    for i in range(len(loss)):
        rest = loss.take(np.delete(np.arange(len(loss)), i)).clipped_sum(W, bound, order=order)
        assert np.linalg.norm((whole - rest).ravel(), ord=order) <= bound * (1 + 1e-9)


def test_gradients_that_nearly_cancel_are_never_taken_for_smaller_than_they_are():
    """Their squared norm by inner products is a small difference of large numbers: 152.38 came out
    for 152.41.
    """
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(1, 1, 4)) * 1e8, rng.normal(size=(1, 1, 6))
    for apart in (1e-3, 1e-6, 1e-8, 1e-9):
        both = Gradients(
            np.concatenate([left, -left * (1 + apart)], 1), np.concatenate([right, right], 1)
        )
        formed = np.einsum("nkr,nkd->nrd", both.left, both.right)
        assert both.norms(2)[0] >= np.linalg.norm(formed)


def test_a_gradient_that_is_no_number_does_not_reach_the_others():
    left, right = np.ones((3, 2, 4)), np.ones((3, 2, 5))
    left[1, 0, 2] = np.nan
    kept = np.array([1.0, 0.0, 1.0])
    np.testing.assert_allclose(Gradients(left, right).weighted_sum(kept), np.full((4, 5), 4.0))


@given(SEEDS, st.sampled_from([1, 2]), st.floats(0.01, 2.0))
@settings(max_examples=60, deadline=None)
def test_theorem_1_each_row_moves_by_at_most_2h_over_the_batch_when_a_pair_is_replaced(
    seed, order, h
):
    rng = np.random.default_rng(seed)
    n = 5
    dx, far = rng.normal(size=(n + 1, 4)), rng.random(n + 1) < 0.5
    W = rng.normal(size=(3, 4)) * 3
    loss = Contrastive(dx, far, margin=1.0)
    here, _ = loss.take(np.arange(n)).clipped_rows(W, h, order=order)
    there, _ = loss.take(np.arange(1, n + 1)).clipped_rows(W, h, order=order)
    moved = np.linalg.norm((here - there) / n, ord=order, axis=1)
    assert (moved <= 2 * h / n * (1 + 1e-9)).all()


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_lemma_1_bounds_the_gradient_of_a_dissimilar_pair(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, 6))
    x /= np.abs(x).sum(axis=1, keepdims=True)
    W, margin = rng.normal(size=(3, 6)) * 5, float(rng.uniform(0.1, 3))
    gradient = Contrastive(x[:1] - x[1:], np.array([True]), margin=margin).gradients(W)[0]
    assert (np.abs(gradient).sum(axis=1) <= 2 * margin * np.sqrt(3) + 1e-9).all()


def test_rows_are_clipped_one_by_one_and_the_peak_is_a_norm():
    loss = make("contrastive", 3, n=30)
    W = np.random.default_rng(1).normal(size=(3, 5)) * 4
    dense = loss.gradients(W)
    norms = np.abs(dense).sum(axis=2)
    clipped = dense / np.maximum(1, norms / 0.5)[:, :, None]
    total, peak = loss.clipped_rows(W, 0.5)
    np.testing.assert_allclose(total, clipped.sum(axis=0))
    np.testing.assert_allclose(peak, np.minimum(norms, 0.5).max(axis=0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_matrix_is_clipped_once(kind):
    loss = make(kind, 4, n=20)
    W = np.random.default_rng(2).normal(size=(3, 5))
    dense = loss.gradients(W)
    norms = np.sqrt((dense**2).sum(axis=(1, 2)))
    expected = (dense * np.minimum(1, 0.3 / norms.clip(1e-300))[:, None, None]).sum(axis=0)
    np.testing.assert_allclose(loss.clipped_sum(W, 0.3), expected, atol=1e-12)


def test_the_papers_margin_is_the_mean_norm_of_dissimilar_differences():
    dx = np.array([[1.0, -1.0], [3.0, 4.0], [0.0, 2.0]])
    far = np.array([True, False, True])
    assert mean_dissimilar_distance(dx, far) == 2.0
    assert mean_dissimilar_distance(dx, far, order=2) == pytest.approx((2**0.5 + 2) / 2)


def test_group_sizes_count_what_a_unit_touches():
    pairs = np.array([[0, 1], [0, 2], [0, 3], [2, 3]])
    assert group_size(pairs, "pair") == 1
    assert group_size(pairs, "record") == 3
    assert group_size(pairs, "kappa pairs", kappa=2) == 2
    triplets = np.array([[0, 1, 2], [0, 1, 3], [1, 0, 4]])
    assert group_size(triplets, "pair") == 3  # 0 and 1 are compared in all three
    assert group_size(triplets, "record") == 3
    assert group_size(pairs, "label") == group_size(triplets, "label") == 1
    # The same question twice, once with the other answer.
    assert group_size(np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2]]), "label") == 2


def test_a_person_is_in_every_pair_that_touches_one_of_their_records():
    pairs = np.array([[0, 1], [0, 2], [1, 3], [2, 3]])
    people = np.array([7, 7, 5, 5])
    # Person 7 is in (0, 1) once, although both records are theirs.
    assert group_size(pairs, "person", people=people) == 3
    assert group_size(np.array([[0, 1, 2], [2, 3, 0]]), "person", people=people) == 2
    with pytest.raises(InvalidParameter, match="people"):
        group_size(pairs, "person")

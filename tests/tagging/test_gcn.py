"""ML-GCN against an independent dense computation, its losses by hand, and that it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from blindsight.evaluation.scores import mean_average_precision  # noqa: E402
from blindsight.tagging.gcn import (  # noqa: E402
    MLGCN,
    LabelGraph,
    TaggingLoss,
    classifier_array,
    torch_generator,
    train,
)
from blindsight.tagging.paper import Schedule  # noqa: E402


def problem(seed=0, n=400, d=20, c=6):
    rng = np.random.default_rng(seed)
    x = np.abs(rng.normal(size=(n, d))).astype(np.float32)
    w = rng.normal(size=(c, d))
    y = (x @ w.T + 0.3 * rng.normal(size=(n, c)) > 0).astype(np.uint8)
    return x, y, rng


def make(seed=0, c=6, d=20, hidden=16, **options):
    _, y, rng = problem(seed, c=c, d=d)
    graph = LabelGraph.from_labels(y)
    z = rng.normal(size=(c, 5))
    return (
        MLGCN(
            graph.normalised,
            z,
            n_features=d,
            hidden=hidden,
            generator=torch_generator(rng),
            **options,
        ),
        z,
        graph,
    )


def test_classifier_equals_the_dense_computation_with_loops():
    head, z, graph = make()
    a = graph.normalised
    t1, t2 = head.theta1.detach().numpy().astype(float), head.theta2.detach().numpy().astype(float)
    c, d, h = 6, 20, 16
    hidden = np.zeros((c, h))
    for i in range(c):
        for k in range(h):
            total = sum(a[i, j] * z[j, m] * t1[m, k] for j in range(c) for m in range(5))
            hidden[i, k] = total if total > 0 else 0.2 * total
    w = np.zeros((c, d))
    for i in range(c):
        for f in range(d):
            w[i, f] = sum(a[i, j] * hidden[j, k] * t2[k, f] for j in range(c) for k in range(h))
    np.testing.assert_allclose(classifier_array(head), w, atol=1e-5)
    x = np.random.default_rng(1).normal(size=(3, d)).astype(np.float32)
    np.testing.assert_allclose(head(torch.tensor(x)).detach().numpy(), x @ w.T, atol=1e-4)


def test_corollaries_bound_the_weights():
    head, _, _ = make(weight_ceiling=0.01)
    assert classifier_array(head).max() <= 0.01 + 1e-7
    head, _, _ = make(weight_floor=0.3)
    assert np.abs(classifier_array(head)).min() >= 0.3 - 1e-6


def test_loss_is_the_negative_log_likelihood_summed_over_labels():
    logits, labels = torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 0.0]])
    by_hand = -math.log(1 / (1 + math.exp(-1))) - math.log(1 - 1 / (1 + math.exp(2)))
    weights = torch.tensor([[2.0, 1.0]])
    assert TaggingLoss()(logits, labels, weights).item() == pytest.approx(by_hand, rel=1e-6)
    robust = TaggingLoss(robust=0.5)(logits, labels, weights).item()
    assert robust == pytest.approx(by_hand + 0.5 * 5, rel=1e-6)  # Equation 14: plus, not minus


@pytest.mark.parametrize(
    ("penalty", "robust", "decay"), [("ridge", 0.001, 0.0), ("mean", 0.5, 0.0), ("decay", 0.0, 0.5)]
)
def test_lambda_weighs_against_the_sum_of_the_records_unless_told_otherwise(penalty, robust, decay):
    loss = TaggingLoss.of(0.5, penalty, n_records=500)
    assert (loss.robust, loss.decay) == (robust, decay)


def test_bias_of_the_loss_is_not_what_equation_13_says():
    c, s, eps = 20, 20.0, 10.0
    rng = np.random.default_rng(0)
    alpha = rng.laplace(scale=s / eps, size=(200_000, c))
    measured = np.mean((alpha**2).sum(axis=1)) / 8
    assert measured == pytest.approx(
        c * 2 * (s / eps) ** 2 / 8, rel=0.02
    )  # E(alpha'alpha) is C variances: 20
    assert measured > 300 * s / (4 * eps**2)  # Equation 13 forgets C and one factor of S: 0.05


def test_training_learns_and_reports_its_curve():
    x, y, rng = problem(3)
    graph = LabelGraph.from_labels(y)
    head = MLGCN(
        graph.normalised, np.eye(6), n_features=20, hidden=32, generator=torch_generator(rng)
    )
    seen = []
    curves = train(
        head,
        x,
        y,
        TaggingLoss(),
        Schedule(epochs=60, batch_size=64, learning_rate=0.05),
        rng=rng,
        validation=(x, y),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert curves.loss[-1] < 0.6 * curves.loss[0]
    assert curves.validation_map[-1] > 0.9
    assert seen[-1] == (60, 60)
    assert mean_average_precision(y, x @ classifier_array(head).T) > 0.9


def test_training_twice_from_one_seed_gives_one_model():
    results = []
    for _ in range(2):
        x, y, _ = problem(1)
        head, _, _ = make(1)
        noise = np.random.default_rng(7)
        train(
            head,
            x,
            y,
            TaggingLoss(),
            Schedule(epochs=2, batch_size=64),
            rng=np.random.default_rng(5),
            perturb=lambda outputs, noise=noise: (
                outputs + noise.laplace(size=outputs.shape).astype(np.float32)
            ),
        )
        results.append(classifier_array(head))
    np.testing.assert_array_equal(results[0], results[1])

"""DP-SGD on the heads: per-sample gradients and clipping against brute force, sampling, noise, and the accountant."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from blindsight.evaluation.multilabel import mean_average_precision  # noqa: E402
from blindsight.privacy import accounting  # noqa: E402
from blindsight.tagging import dpsgd  # noqa: E402
from blindsight.tagging.dpsgd import (  # noqa: E402
    PrivateSchedule,
    clipped_sum,
    graph_gradients,
    train_privately,
)
from blindsight.tagging.gcn import MLGCN, LinearHead, classifier_array, torch_generator  # noqa: E402
from blindsight.tagging.label_graph import LabelGraph  # noqa: E402


def problem(n=40, d=7, c=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)).astype(np.float32)
    y = (x @ rng.normal(size=(d, c)) > 0).astype(np.uint8)
    return x, y, rng


def make(kind, x, y, rng, hidden=5):
    graph = LabelGraph.from_labels(y, threshold=0.3)
    if kind == "linear":
        head = LinearHead(graph.normalised, n_features=x.shape[1])
        with torch.no_grad():
            head.weight += torch.as_tensor(rng.normal(size=head.weight.shape), dtype=torch.float32)
        return head
    return MLGCN(
        graph.normalised,
        rng.normal(size=(y.shape[1], 3)),
        n_features=x.shape[1],
        hidden=hidden,
        generator=torch_generator(rng),
    )


def brute_force(head, x, y):
    """One backward pass a record, by plain autograd."""
    rows = []
    for i in range(len(x)):
        head.zero_grad()
        logits = head(torch.as_tensor(x[i : i + 1]))
        torch.nn.functional.binary_cross_entropy_with_logits(
            logits, torch.as_tensor(y[i : i + 1], dtype=torch.float32), reduction="sum"
        ).backward()
        rows.append([p.grad.clone() for p in head.parameters()])
    head.zero_grad()
    return [torch.stack([row[k] for row in rows]) for k in range(len(rows[0]))]


def residual_of(head, x, y):
    with torch.no_grad():
        return torch.sigmoid(head(torch.as_tensor(x))) - torch.as_tensor(y, dtype=torch.float32)


def test_closed_form_gradients_equal_one_backward_pass_a_record():
    x, y, rng = problem()
    head = make("gcn", x, y, rng)
    ours = graph_gradients(head, [torch.as_tensor(x)], residual_of(head, x, y))
    for parameter, theirs in zip(head.parameters(), brute_force(head, x, y), strict=True):
        torch.testing.assert_close(ours[parameter].detach(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bound", [0.3, 1e6])
def test_linear_clipped_sum_equals_clipping_one_backward_pass_a_record(bound):
    x, y, rng = problem()
    head = make("linear", x, y, rng)
    ours = clipped_sum(head, torch.as_tensor(x), residual_of(head, x, y), bound)
    (rows,) = brute_force(head, x, y)
    factor = (bound / (rows.flatten(1).norm(dim=1) + 1e-6)).clamp(max=1.0)
    torch.testing.assert_close(ours.detach(), torch.einsum("n,ncd->cd", factor, rows), rtol=1e-4, atol=1e-5)


def test_a_linear_head_starts_from_its_bias_through_the_graph():
    x, y, _ = problem()
    head = LinearHead(LabelGraph.from_labels(y, threshold=0.3).normalised, n_features=8, bias=[-1.0, -2.0, -3.0, 0.5])
    scores = head(torch.as_tensor(np.hstack([x, np.ones((len(x), 1), np.float32)]))).detach().numpy()
    np.testing.assert_allclose(scores, np.tile([-1.0, -2.0, -3.0, 0.5], (len(x), 1)), atol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "gcn"])
@pytest.mark.parametrize("chunk", [1 << 25, 300])
def test_one_noiseless_step_is_the_clipped_mean_done_by_hand(kind, chunk, monkeypatch):
    x, y, rng = problem()
    head = make(kind, x, y, rng)
    before = [p.detach().clone() for p in head.parameters()]
    gradients = brute_force(head, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients], dim=1).norm(dim=1)
    bound = float(norms.median())  # half of the records are clipped
    factor = (bound / (norms + 1e-6)).clamp(max=1.0)
    monkeypatch.setattr(dpsgd, "_noise_multiplier", lambda *_: 0.0)
    monkeypatch.setattr(dpsgd, "_MOST_FLOATS", chunk)
    schedule = PrivateSchedule(
        epsilon=1.0, delta=1e-5, n_records=40, epochs=1, batch_size=40, learning_rate=0.3, max_grad_norm=bound
    )
    assert (schedule.steps, schedule.sampling_rate) == (1, 1.0)
    train_privately(head, x, y, schedule, rng=rng)
    for start, after, gradient in zip(before, head.parameters(), gradients, strict=True):
        step = torch.einsum("n,n...->...", factor, gradient) / 40
        torch.testing.assert_close(after.detach(), start - 0.3 * step, rtol=1e-4, atol=1e-5)


def test_one_record_moves_the_clipped_sum_by_at_most_the_bound(monkeypatch):
    monkeypatch.setattr(dpsgd, "_noise_multiplier", lambda *_: 0.0)
    moved = []
    for scale in (1.0, 1e3):  # an outlier a thousand times larger
        weights = []
        for n in (20, 21):
            x, y, _ = problem(21)
            x[20] *= scale
            head = LinearHead(np.eye(4), n_features=7)
            schedule = PrivateSchedule(
                epsilon=1.0, delta=1e-5, n_records=n, epochs=1, batch_size=21, learning_rate=1.0, max_grad_norm=0.5
            )
            train_privately(head, x[:n], y[:n], schedule, rng=np.random.default_rng(0))
            weights.append(classifier_array(head))
        moved.append(np.linalg.norm(weights[1] - weights[0]) * 21)
    assert max(moved) <= 0.5 + 1e-4
    assert moved[1] == pytest.approx(0.5, abs=1e-3)


def test_noise_has_the_deviation_that_the_accountant_asked_for():
    x, y, rng = problem(30, d=300, c=10)
    x[:] = 0  # no gradient: what moves the weights is noise alone
    head = LinearHead(np.eye(10), n_features=300)
    schedule = PrivateSchedule(
        epsilon=1.0, delta=1e-5, n_records=30, epochs=1, batch_size=30, learning_rate=1.0, max_grad_norm=2.0
    )
    train_privately(head, x, y, schedule, rng=rng)
    deviation = classifier_array(head).std() * 30
    assert deviation == pytest.approx(2.0 * schedule.noise_multiplier, rel=0.1)


def test_empty_samples_are_steps_of_noise_alone():
    x, y, rng = problem(200)
    head = LinearHead(np.eye(4), n_features=7)
    schedule = PrivateSchedule(epsilon=2.0, delta=1e-5, n_records=200, epochs=1, batch_size=1)
    assert schedule.steps == 200  # at a rate of 1/200 a third of the samples are empty
    curves = train_privately(head, x, y, schedule, rng=rng)
    assert np.isfinite(classifier_array(head)).all()
    assert np.isfinite(curves.loss).all()


def test_accountant_agrees_with_opacus():
    from opacus.accountants.utils import get_noise_multiplier

    schedule = PrivateSchedule(epsilon=2.0, delta=1e-5, n_records=1000, epochs=5, batch_size=100)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order", category=UserWarning)
        theirs = get_noise_multiplier(
            target_epsilon=2.0, target_delta=1e-5, sample_rate=0.1, steps=schedule.steps, accountant="prv"
        )
    assert schedule.noise_multiplier == pytest.approx(theirs, rel=0.02)
    spent = accounting.gaussian_epsilon(
        noise_multiplier=schedule.noise_multiplier, steps=50, sampling_rate=0.1, delta=1e-5
    )
    assert spent <= 2.0


def test_private_training_learns():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3000, 12)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = (x @ rng.normal(size=(12, 4)) > 0).astype(np.uint8)
    head = LinearHead(np.eye(4), n_features=12)
    seen = []
    curves = train_privately(
        head,
        x,
        y,
        PrivateSchedule(epsilon=2.0, delta=1e-5, n_records=3000, epochs=8, batch_size=300, learning_rate=4.0),
        rng=rng,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert mean_average_precision(y, x @ classifier_array(head).T) > 0.9
    assert curves.loss[-1] < curves.loss[0]
    assert seen[-1][0] == seen[-1][1]

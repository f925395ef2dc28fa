"""The multi-label metrics, against scikit-learn, torchmetrics and small cases done by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.evaluation.scores import (
    average_precisions,
    decision_scores,
    evaluate,
    mean_average_precision,
    top_k,
)


@pytest.fixture(params=range(4))
def case(request):
    rng = np.random.default_rng(request.param)
    y = (rng.random((60, 7)) < 0.3).astype(int)
    y[0] = 0
    y[1] = 1  # every label occurs
    # Rounding makes ties, which a release with few values has many of.
    s = np.round(rng.normal(size=y.shape) + y, 1)
    return y, s


def test_overall_and_class_scores_match_scikit_learn(case):
    y, s = case
    d = (s > 0).astype(int)
    ours = decision_scores(y, d)
    p, r, f, _ = precision_recall_fscore_support(y, d, average="micro")
    assert (ours["OP"], ours["OR"], ours["OF1"]) == pytest.approx((p, r, f))
    p, r, _, _ = precision_recall_fscore_support(y, d, average="macro")
    assert (ours["CP"], ours["CR"]) == pytest.approx((p, r))
    assert ours["CF1"] == pytest.approx(2 * p * r / (p + r))


def test_average_precision_with_ties_matches_scikit_learn(case):
    y, s = case
    theirs = [average_precision_score(y[:, c], s[:, c]) for c in range(y.shape[1])]
    np.testing.assert_allclose(average_precisions(y, s), theirs)
    assert mean_average_precision(y, s) == pytest.approx(
        average_precision_score(y, s, average="macro")
    )


def test_scores_match_torchmetrics(case):
    torch = pytest.importorskip("torch")
    from torchmetrics.functional.classification import (
        multilabel_average_precision,
        multilabel_f1_score,
        multilabel_precision,
        multilabel_recall,
    )

    y, s = case
    # Rounded: a vectorised sigmoid may give equal scores different last bits, and part ties.
    preds, target = torch.tensor(np.round(1 / (1 + np.exp(-s)), 9)), torch.tensor(y)
    ours = evaluate(y, s)
    theirs = {
        "mAP": multilabel_average_precision(preds, target, num_labels=7),
        "OP": multilabel_precision(preds, target, num_labels=7, average="micro"),
        "OR": multilabel_recall(preds, target, num_labels=7, average="micro"),
        "OF1": multilabel_f1_score(preds, target, num_labels=7, average="micro"),
        "CP": multilabel_precision(preds, target, num_labels=7, average="macro"),
        "CR": multilabel_recall(preds, target, num_labels=7, average="macro"),
    }
    for name, value in theirs.items():
        assert getattr(ours, name) == pytest.approx(float(value), abs=1e-6), name


def test_a_small_case_by_hand():
    y = [[1, 0, 1], [0, 1, 0], [1, 1, 0]]
    s = [[2.0, 1.0, -1.0], [-2.0, 3.0, -3.0], [1.0, -1.0, -2.0]]
    scores = evaluate(y, s, k=1)
    # Predicted: {0,1}, {1}, {0}: three of four are right, five labels are true.
    assert pytest.approx((3 / 4, 3 / 5)) == (scores.OP, scores.OR)
    assert pytest.approx(2 * 0.75 * 0.6 / 1.35) == scores.OF1
    # By label: precision 2/2, 1/2, none = 0; recall 2/2, 1/2, 0/1.
    assert pytest.approx((0.5, 0.5)) == (scores.CP, scores.CR)
    # Label 1 ranks images 1, 0, 2: precision 1 at the first, 2/3 at the third.
    assert scores.mAP == pytest.approx((1 + (1 + 2 / 3) / 2 + 1) / 3)
    # Top 1: labels 0, 1, 0: all right, three of five found.
    assert pytest.approx((1.0, 3 / 5)) == (scores.OP3, scores.OR3)


def test_a_label_that_never_occurs_is_left_out_or_counts_as_zero():
    y = [[1, 0], [0, 0]]
    s = [[1.0, 1.0], [-1.0, -1.0]]
    assert np.isnan(average_precisions(y, s)[1])
    skipped, zero = evaluate(y, s), evaluate(y, s, absent="zero")
    assert (skipped.mAP, zero.mAP) == (1.0, 0.5)
    assert (skipped.CR, zero.CR) == (1.0, 0.5)
    assert skipped.CP == zero.CP == 0.5
    assert skipped.labels_counted == 1


def test_an_image_without_labels_only_costs_precision():
    y, s = [[1, 0], [0, 0]], [[1.0, -1.0], [1.0, -2.0]]
    scores = evaluate(y, s)
    assert (scores.OP, scores.OR) == (0.5, 1.0)
    assert evaluate([[0, 0]], [[1.0, 1.0]]).to_dict()["OF1"] == 0.0


def test_top_k_marks_exactly_k_and_all_when_there_are_fewer_labels():
    s = np.zeros((4, 5))
    assert (top_k(s, 3).sum(axis=1) == 3).all()
    assert top_k(s, 3)[0].tolist() == [True, True, True, False, False]
    assert top_k(s[:, :2], 3).all()


def test_rows_in_another_order_change_nothing(case):
    y, s = case
    order = np.random.default_rng(0).permutation(len(y))
    assert evaluate(y, s).to_dict() == pytest.approx(evaluate(y[order], s[order]).to_dict())


def test_decisions_may_differ_from_thresholded_scores():
    y, s = [[1, 0], [0, 1]], [[0.1, 0.2], [0.2, 0.1]]
    assert evaluate(y, s, decisions=y).OF1 == 1.0
    assert evaluate(y, s, threshold=0.5).OF1 == 0.0


@pytest.mark.parametrize(
    ("y", "s"),
    [
        ([[1, 2]], [[0.0, 0.0]]),
        ([[1, 0]], [[0.0]]),
        ([1, 0], [0.0, 0.0]),
        ([[1, 0]], [[np.nan, 0.0]]),
        (np.zeros((0, 2)), np.zeros((0, 2))),
        ([["a", "b"]], [[0.0, 0.0]]),
    ],
)
def test_what_is_not_a_label_table_is_refused(y, s):
    with pytest.raises(InvalidData):
        evaluate(y, s)


def test_unknown_treatment_of_absent_labels_is_refused():
    with pytest.raises(InvalidParameter, match="absent"):
        evaluate([[1]], [[0.0]], absent="maybe")

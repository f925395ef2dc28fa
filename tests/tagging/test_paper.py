"""P2-ML-GCN and RP2-ML-GCN to the letter: what they claim, that nothing is proven, and what their
options do.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from blindsight.core.errors import BudgetExceeded, InvalidParameter, NotProven
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.door import listening
from blindsight.tagging import P2MLGCN, RP2MLGCN, Corollary, GraphHead, Schedule, Tagger
from blindsight.tagging.paper import PaperInputs

pytestmark = pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")
SMALL, SHORT = GraphHead(hidden=8), Schedule(epochs=2)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(400, 20))).astype(np.float32)
    y = ((x - x.mean(axis=0)) @ rng.normal(size=(20, 6)) > 1).astype(np.uint8)
    return x, y


def test_there_is_a_claim_and_no_proof(problem):
    model = P2MLGCN(10.0, bound_factor=0.8, head=SMALL, schedule=SHORT, random_state=0).fit(
        *problem
    )
    assert model.guarantee_.claimed == pytest.approx(12.5)
    assert model.guarantee_.calibration == "paper"
    assert math.isinf(model.guarantee_.epsilon)
    assert math.isinf(model.training_guarantee_.epsilon)


class Listener:
    """Keeps every passage and what was released."""

    def __init__(self):
        self.passed_by = []

    def opened(self, door):
        return None

    def absent(self, n):
        return None

    def passing(self, passage):
        return None

    def passed(self, passage, released):
        self.passed_by.append((passage, np.asarray(released, np.float64) - passage.value))


@pytest.mark.parametrize("model", [P2MLGCN, RP2MLGCN])
@pytest.mark.parametrize(("sensitivity", "scale"), [("C", 0.8 * 6 / 10), ("1", 0.8 / 10)])
def test_what_is_drawn_in_training_and_in_answers_is_what_is_planned(
    problem, model, sensitivity, scale
):
    settings = {
        "sensitivity": sensitivity,
        "bound_factor": 0.8,
        "head": SMALL,
        "schedule": Schedule(30, 64),
    }
    with listening(Listener()) as heard:
        fitted = model(10.0, **settings).fit(*problem)
        answered = fitted.decision_function(problem[0])
    *trained, (last, noise) = heard.passed_by
    (planned,) = fitted.training_guarantee_.releases
    assert planned.count == len(trained) == 30 * 7
    assert planned.mechanism.scale == last.planned.mechanism.scale == pytest.approx(scale)
    np.testing.assert_array_equal(answered, last.value + noise)
    for drawn in (np.concatenate([noise.ravel() for _, noise in trained]), noise.ravel()):
        # |Laplace(b)| has mean and deviation b: six deviations of the mean, a false alarm in 10^8.
        assert abs(np.abs(drawn).mean() - scale) < 6 * scale / math.sqrt(drawn.size)
    assert fitted.training_guarantee_.entropy == "system"


def test_a_ledger_refuses_what_has_no_finite_price(problem, tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", dataset="photos")
    ledger.grant(Cost(epsilon=1e6, delta=0.1, unit="record", neighbours="add or remove one"))
    ledger.grant(Cost(epsilon=250.0, unit="query"))
    with pytest.raises(NotProven):
        P2MLGCN(10.0, head=SMALL, schedule=SHORT).fit(*problem, ledger=ledger)
    model = P2MLGCN(10.0, clip=5.0, head=SMALL, schedule=SHORT).fit(*problem)
    for _ in range(2):
        model.predict(problem[0][:5], ledger=ledger)  # 100 each, where the paper claims 10
    with pytest.raises(BudgetExceeded):
        model.predict(problem[0][:5], ledger=ledger)


def test_clipped_logits_have_a_number(problem):
    model = P2MLGCN(10.0, clip=5.0, head=SMALL, schedule=SHORT, random_state=0).fit(*problem)
    assert model.guarantee_.epsilon == pytest.approx(100.0)


@pytest.mark.parametrize("number", [1, 2])
def test_corollaries_bound_weights_and_features(problem, number):
    corollary = Corollary(number, gamma=2.0, factor=0.1)
    model = P2MLGCN(10.0, corollary=corollary, head=SMALL, schedule=SHORT, random_state=0).fit(
        *problem
    )
    rows = corollary.inputs(problem[0])
    if number == 1:
        assert model.weights_.max() <= 4 * 0.1 + 1e-6
        assert np.abs(rows).min() >= 0.5
        assert model.training_guarantee_.claimed == pytest.approx(1.0)
    else:
        assert np.abs(model.weights_).min() >= 0.5 - 1e-6
        assert rows.max() <= 4 * 0.1 + 1e-6


def test_a_penalty_against_the_mean_loss_destroys_what_ridge_leaves_whole(problem):
    long = Schedule(epochs=60, learning_rate=0.01)
    sizes = {
        penalty: np.linalg.norm(
            Tagger(robust=robust, penalty=penalty, head=SMALL, schedule=long, random_state=0)
            .fit(*problem)
            .weights_
        )
        for penalty, robust in (("ridge", 0.0), ("decay", 0.5), ("mean", 0.5))
    }
    ridge = Tagger(robust=0.5, head=SMALL, schedule=long, random_state=0).fit(*problem).weights_
    assert 0.5 * sizes["ridge"] < np.linalg.norm(ridge) < sizes["ridge"]
    assert sizes["mean"] < 0.3 * sizes["ridge"]
    assert sizes["decay"] < sizes["ridge"]


def test_rp2_is_p2_with_a_penalty(problem):
    settings = {"head": SMALL, "schedule": SHORT, "random_state": 0}
    p2 = P2MLGCN(10.0, **settings).fit(*problem)
    np.testing.assert_array_equal(
        RP2MLGCN(10.0, robust=0.0, **settings).fit(*problem).weights_, p2.weights_
    )
    assert not np.array_equal(RP2MLGCN(10.0, **settings).fit(*problem).weights_, p2.weights_)


def test_the_graph_of_the_published_code_is_another(problem):
    made = [
        Tagger(
            head=GraphHead(hidden=8, form=form, threshold=0.2),
            schedule=SHORT,
            random_state=0,
        )
        for form in ("text", "code")
    ]
    assert not np.array_equal(*(model.fit(*problem).weights_ for model in made))


def test_rows_are_of_one_length_and_a_row_of_zeros_stays():
    rows = PaperInputs()(np.array([[3.0, 4.0], [0.0, 0.0], [1e30, 0.0]]))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), [4.0, 0.0, 4.0], rtol=1e-6)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: P2MLGCN(0.0),
        lambda: P2MLGCN(sensitivity="2"),
        lambda: P2MLGCN(bound_factor=0.0),
        lambda: P2MLGCN(clip=-1.0),
        lambda: RP2MLGCN(robust=-1.0),
        lambda: RP2MLGCN(penalty="banana"),
        lambda: Tagger(head=GraphHead(form="none")),
        lambda: Tagger(schedule=Schedule(epochs=0)),
        lambda: P2MLGCN(corollary=Corollary(3)),
    ],
)
def test_what_is_given_is_checked(problem, bad):
    with pytest.raises(InvalidParameter):
        bad().fit(*problem)

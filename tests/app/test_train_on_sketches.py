"""Training on sketches says what chance is, and when there is too little to learn from."""

from __future__ import annotations

from blindsight.app.train_on_sketches import TrainedOnSketches


def _trained(accuracy: float, n_training: int, n_test: int) -> TrainedOnSketches:
    return TrainedOnSketches(
        accuracy=accuracy,
        chance=0.1,
        n_classes=10,
        n_training=n_training,
        n_test=n_test,
        parameters="Q3",
        network="lenet5",
        losses=(2.3,),
    )


def test_few_sketches_at_chance_are_called_so() -> None:
    result = _trained(0.1, 243, 27)
    assert "accuracy 10.00% (chance: 10.00%)" in result.title
    assert "too little to learn from: 24 sketches per class" in str(result)
    assert "no better than chance" in str(result)
    assert len(result.to_dict()["notes"]) == 2


def test_a_lucky_guess_on_few_sketches_is_not_above_chance() -> None:
    assert not _trained(5 / 27, 243, 27).above_chance
    assert _trained(15 / 27, 243, 27).above_chance


def test_enough_sketches_and_a_clear_accuracy_need_no_note() -> None:
    assert _trained(0.96, 50_000, 10_000).warnings() == []

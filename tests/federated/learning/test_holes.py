"""What a saved classifier may hold with noise on: released weights and public facts, byte for
byte.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from blindsight.core.errors import NotProven
from blindsight.federated import FederatedClassifier, Federation, SumNoise
from blindsight.privacy import Cost, Ledger

CLASSES = ("cat", "dog", "fox")


def rows(seed: int, names: tuple[str, ...] = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(60, 4)), rng.choice(names, 60)


def noisy(**params) -> FederatedClassifier:
    return FederatedClassifier(
        **{
            "users": 10,
            "rounds": 2,
            "noise": SumNoise(epsilon=8.0),
            "encrypt": False,
            "classes": CLASSES,
            **params,
        }
    )


def saved(model: FederatedClassifier, path: Path) -> bytes:
    model.save(path)
    return path.read_bytes()


def test_equal_releases_give_equal_files_whatever_the_data(tmp_path: Path, monkeypatch) -> None:
    """The replay contract: what was released on one data set, handed out on a wholly different
    one.
    """
    sums: list[np.ndarray] = []
    real = Federation.round

    def record(self, **options):
        log = real(self, **options)
        sums.append(self.weights.copy())
        return log

    monkeypatch.setattr(Federation, "round", record)
    first = saved(noisy().fit(*rows(0)), tmp_path / "first")
    handed = iter(list(sums))

    def replay(self, **options):
        log = real(self, **options)
        self.weights = next(handed)
        return log

    monkeypatch.setattr(Federation, "round", replay)
    # One class never occurs, and nothing else is alike.
    assert saved(noisy().fit(*rows(1, CLASSES[:2])), tmp_path / "second") == first


def test_logs_stay_with_their_owner(tmp_path: Path) -> None:
    data = saved(noisy().fit(*rows(0)), tmp_path / "model")
    fields = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    for word in ("accuracy", "seconds", "sparsity", "rounds_"):
        assert f'"{word}"' not in json.dumps(fields).replace('\\"', '"').replace(
            '"sparsity": null', ""
        )


def test_classes_taken_from_private_labels_prove_nothing(tmp_path: Path) -> None:
    model = noisy(classes=None).fit(*rows(0))
    assert math.isinf(model.guarantee_.epsilon)
    assert "classes=" in model.guarantee_.card()
    assert noisy().fit(*rows(0)).guarantee_.epsilon <= 8.0
    ledger = Ledger(tmp_path / "ledger.db", dataset="pets")
    ledger.grant(Cost(epsilon=100, unit="user"))
    with pytest.raises(NotProven):
        noisy(classes=None).fit(*rows(0), ledger=ledger)


def test_which_classes_occur_never_decides_whether_it_fits() -> None:
    X, y = rows(0)
    for label in CLASSES:
        model = noisy().fit(X, np.full(len(y), label))
        assert model.classes_.tolist() == list(CLASSES)
        assert set(model.predict(X)) <= set(CLASSES)


def test_a_label_outside_the_public_classes_shows_nowhere() -> None:
    X, y = rows(0, ("cat", "wolf"))
    model = noisy().fit(X, y)
    assert model.classes_.tolist() == list(CLASSES)
    assert "wolf" not in repr(vars(model))

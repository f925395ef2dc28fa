from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits


@pytest.fixture(scope="session")
def digits() -> dict[str, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    X = (X - X.mean(axis=0)) / (X.std(axis=0) + 1e-9)
    return {
        "public": X[:150],
        "public_y": y[:150],
        "X": X[150:1150],
        "y": y[150:1150],
        "test": X[1150:],
        "test_y": y[1150:],
    }

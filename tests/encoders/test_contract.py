from __future__ import annotations

from typing import Any

import numpy as np

from blindsight import data
from blindsight.encoders import PixelPCA
from contracts.estimator import EstimatorContract

DIGITS = data.load("digits")[:200]


class TestPixelPCA(EstimatorContract):
    def make(self, **params: Any) -> PixelPCA:
        return PixelPCA(n_components=4, **params)

    def data(self) -> tuple[Any, ...]:
        return (DIGITS,)

    def output(self, fitted: PixelPCA) -> np.ndarray:
        return fitted.transform(DIGITS)

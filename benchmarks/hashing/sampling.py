"""Bit sampling: release a few bits of each code, a different few for each image.

At a fixed epsilon per record the best price of a flipped bit is about 2.18, so at epsilon 8 hardly
four bits can be told well. Choosing the same four for everyone wastes what the other bits know;
here each image draws its own positions, independently of what they hold, so that the positions
themselves tell nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks, codes
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.hashing.guarantee import Source
from blindsight.hashing.paper import CodeUnit, PHashing, flip_mechanism
from blindsight.privacy.entropy import RandomState, source_of, words
from blindsight.privacy.mechanisms import BitFlip

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["BEST_PRICE", "SampledPHashing"]

# : the epsilon per bit at which a record's budget buys most: the maximum of (1 - 2 beta)^2 /
# epsilon.
BEST_PRICE = 2.18


class SampledPHashing(PHashing):
    """`PHashing` of `n_sampled` bits of each code, drawn anew for each image.

    `transform` gives, side by side, the packed released bits (0 where not drawn) and the packed
    mask of the drawn positions: uint8 (n, 2 ceil(c/8)). `scores` reads them with real-valued
    queries. `n_sampled="auto"` takes epsilon / 2.18.

    Guarantee:
        As `PHashing`, for `n_sampled` bits; the positions are independent of the image.
    """

    def __init__(
        self,
        base: Any = None,
        *,
        n_sampled: int | Literal["auto"] = "auto",
        epsilon: float = 8.0,
        calibration: Literal["proven", "paper"] = "proven",
        unit: CodeUnit = "record",
        beta: float | None = None,
        learned_from: Source = "private",
        random_state: RandomState = None,
    ) -> None:
        super().__init__(
            base,
            epsilon=epsilon,
            calibration=calibration,
            unit=unit,
            beta=beta,
            learned_from=learned_from,
            random_state=random_state,
        )
        self.n_sampled = n_sampled

    def _flipped(
        self, plain: Any, ledger: Ledger | None, names: Sequence[str] | None
    ) -> NDArray[np.uint8]:
        bits = codes.unpack(plain, self.n_bits_)
        drawn = self._positions(len(bits), names)
        what = f"{self.mechanism_.n_bits} flipped bits of {len(bits)} codes"
        # Only the drawn bits reach the door.
        told = np.take_along_axis(bits, drawn, axis=1)
        released = self._send(told, what=what, ledger=ledger, names=names, promised=self.guarantee_)
        mask, flipped = np.zeros((2, *bits.shape), dtype=np.uint8)
        np.put_along_axis(mask, drawn, 1, axis=1)
        np.put_along_axis(flipped, drawn, released, axis=1)
        return np.concatenate([codes.pack(flipped), codes.pack(mask)], axis=1)

    def _positions(self, n: int, names: Sequence[str] | None) -> NDArray[np.int64]:
        """Which bits of each code are told (n, n_sampled): drawn without a look at them."""
        source, c = source_of(self.random_state), self.n_bits_
        if names is None:
            keys = words(source.stream("positions", exact=True), n * c).reshape(n, c)
        else:
            keys = np.array(
                [words(source.stream(f"{name}/positions", exact=True), c) for name in names]
            ).reshape(n, c)
        return np.argsort(keys, axis=1)[:, : self.mechanism_.n_bits]

    def scores(self, X: Any, released: ArrayLike) -> NDArray[np.float32]:
        """The expected inner product (m, n) of queries with the true codes: z_j (1 - 2 beta) s_j
        over drawn bits.
        """
        stored = codes.check_codes(released)
        width = codes.n_bytes(self.n_bits_)
        if stored.shape[1] != 2 * width:
            raise InvalidData(
                f"released codes must be {2 * width} bytes wide (bits and mask), got "
                f"{stored.shape[1]}."
            )
        signs = codes.to_signs(stored[:, :width], self.n_bits_) * codes.unpack(
            stored[:, width:], self.n_bits_
        )
        z = self.decision_function(X) * (1 - 2 * self.mechanism_.beta)
        return z.astype(np.float32) @ signs.astype(np.float32).T

    @property
    def _n_features_out(self) -> int:
        return 2 * codes.n_bytes(self.n_bits_)

    def _mechanism(self, n_bits: int) -> BitFlip:
        if self.n_sampled == "auto":
            price = checks.positive("epsilon", self.epsilon) / BEST_PRICE
            return flip_mechanism(self, min(n_bits, max(1, round(price))))
        if checks.whole("n_sampled", self.n_sampled) > n_bits:
            raise InvalidParameter(
                f"n_sampled must be at most the base's {n_bits} bits, got {self.n_sampled}."
            )
        return flip_mechanism(self, self.n_sampled)

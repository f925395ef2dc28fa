"""The paper's losses, with the sign they need, and its formula for their bias beside the right one.

As printed, Equations 2, 8 and 14 are log-likelihoods, which are maximised, while the text minimises them; and λ||W||²
added to a log-likelihood would then reward large weights. Here the *negative* log-likelihood is minimised and the
Frobenius term is added to it, which is what ridge regression (Equation 16) and the text around it ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from blindsight.core import checks

__all__ = ["TaggingLoss", "bias_of_loss", "bias_of_loss_as_printed"]


@dataclass(frozen=True)
class TaggingLoss:
    """ML-GCN (Equation 2), P2 (8), RP2 (14) and R-ML-GCN in one; noise is on the outputs that it is given.

    Parameters:
        robust: the weight of ||W||_F² against the mean loss; 0 leaves it out.
        decay: how much of the parameters is taken away beside each step, in units of the learning rate (decoupled).
    """

    robust: float = 0.0
    decay: float = 0.0

    def __post_init__(self) -> None:
        checks.non_negative("robust", self.robust)
        checks.non_negative("decay", self.decay)

    @classmethod
    def of(cls, robust: float, penalty: Literal["ridge", "mean", "decay"], *, n_records: int) -> TaggingLoss:
        """λ against the sum over the records ("ridge", Equations 15 to 18), against the mean loss, or as decay."""
        if penalty == "ridge":
            return cls(robust / n_records)
        return cls(robust) if penalty == "mean" else cls(0.0, robust)

    def __call__(self, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The loss of one batch: summed over labels, averaged over images, plus the Frobenius term."""
        fit = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / len(logits)
        return fit + self.robust * weights.square().sum() if self.robust > 0 else fit


def bias_of_loss(n_labels: int, scale: float) -> float:
    """E|bias| of the quadratic loss under Laplace(scale) noise on C outputs: C · 2 · scale² / 8.

    The expectation of α'α is 2 C (S/ε)², a sum of C variances.
    """
    return n_labels * 2 * scale**2 / 8


def bias_of_loss_as_printed(sensitivity: float, epsilon: float, bound_factor: float = 1.0) -> float:
    """Equations 13 and 22 to the letter: S_b · S / (4 ε²), which forgets C and one factor of S."""
    return bound_factor * sensitivity / (4 * epsilon**2)

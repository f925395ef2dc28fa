"""Why RP2-ML-GCN should be more robust, and what S_b saves: Equations 13 and 17 to 22, as they
follow and as they are printed.

The paper treats training as linear regression of noisy outputs y' = W x + o on the features x
(d, n), one column an image. What follows from its premises differs from what it prints in three
places:

- Equation 20 ends with tr((x x')⁻¹) = 1, which is wrong: the trace is the sum of the reciprocal
  eigenvalues, d/n for standardised and uncorrelated features. (Lemma 4's tr(EFG) = tr(FEG) is wrong
  as well: a trace is the same under cyclic shifts only. The step that uses it is right.)
- Equation 21 therefore prints Var(Ridge) = z Var(LR) with z = Σ k_i/(k_i + λ)². What follows is
  Var(Ridge) = z σ², and Var(LR) = σ² Σ 1/k_i. Ridge regression has the smaller variance for every
  λ > 0 all the same, because k/(k + λ)² < 1/k; z itself can be above 1.
- Equations 13 and 22 take the second moment of Lap(b) for 2 S/ε² where it is 2 b² = 2 (S_b S/ε)²,
  and forget that C labels have noise: the bias falls with the square of S_b.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData

__all__ = [
    "estimated_weights",
    "estimation_error",
    "loss_bias",
    "printed_loss_bias",
    "printed_variance",
    "weight_variance",
]

Matrix = NDArray[np.float64]


def estimated_weights(outputs: ArrayLike, x: ArrayLike, *, ridge: float = 0.0) -> Matrix:
    """Equations 17 and 18: y' x' (x x' + λ I)⁻¹, the weights (C, d) that fit the outputs (C, n).

    Parameters:
        outputs: y', one row a label.
        x: the features (d, n), one column an image.
        ridge: λ; 0 is least squares, for which x x' must be invertible.

    Examples:
        >>> x = np.array([[1.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
        >>> estimated_weights([[3.0, 4.0, 3.0]], x)
        array([[3., 2.]])
    """
    rows = checks.finite_array("x", x, ndim=2)
    made = checks.finite_array("outputs", outputs, ndim=2)
    if made.shape[1] != rows.shape[1]:
        raise InvalidData(
            f"outputs and x must have a column for each image, got {made.shape[1]} and "
            f"{rows.shape[1]}. Transpose the one that has images as rows."
        )
    return np.asarray(np.linalg.solve(_gram(rows, ridge), rows @ made.T).T)


def estimation_error(noise: ArrayLike, x: ArrayLike) -> Matrix:
    """Equation 19: what noise o on the outputs adds to the least-squares weights, o x' (x x')⁻¹."""
    return estimated_weights(noise, x)


def weight_variance(x: ArrayLike, *, noise: float, labels: int = 1, ridge: float = 0.0) -> float:
    """Equations 20 and 21 as they follow: C σ² Σ k_i/(k_i + λ)² over the eigenvalues k_i of x x'.

    Parameters:
        x: the features (d, n), one column an image.
        noise: σ, the deviation of the noise on one output.
        labels: C; the paper's own lines have one.
        ridge: λ; at 0 this is σ² tr((x x')⁻¹).

    Examples:
        >>> weight_variance(2 * np.eye(3), noise=1.0)
        0.75
    """
    rows = checks.finite_array("x", x, ndim=2)
    variance = checks.positive("noise", noise) ** 2 * checks.whole("labels", labels)
    return float(variance * _factor(rows, ridge))


def printed_variance(x: ArrayLike, *, noise: float, ridge: float = 0.0) -> float:
    """Equations 20 and 21 as printed: σ² for least squares, whatever x, and z σ² for ridge."""
    rows = checks.finite_array("x", x, ndim=2)
    variance = checks.positive("noise", noise) ** 2
    return variance if ridge == 0 else float(variance * _factor(rows, ridge))


def loss_bias(
    epsilon: float, *, sensitivity: float, labels: int, bound_factor: float = 1.0
) -> float:
    """Equations 13 and 22 as they follow: C (S_b S/ε)²/4, by how much Laplace noise on C outputs
    shifts the quadratic loss of Equation 11.

    Parameters:
        epsilon: the claimed ε.
        sensitivity: S; the paper's text has the number of labels, its published code 1.
        labels: C, how many outputs carry noise.
        bound_factor: S_b.

    Examples:
        >>> loss_bias(10.0, sensitivity=20.0, labels=20)
        20.0
    """
    scale = bound_factor * checks.positive("sensitivity", sensitivity)
    scale /= checks.positive("epsilon", epsilon)
    return checks.whole("labels", labels) * scale**2 / 4


def printed_loss_bias(epsilon: float, *, sensitivity: float, bound_factor: float = 1.0) -> float:
    """Equation 22 as printed, S_b S/(4 ε²); with S_b = 1 this is Equation 13.

    Examples:
        >>> printed_loss_bias(10.0, sensitivity=20.0)
        0.05
    """
    scale = bound_factor * checks.positive("sensitivity", sensitivity)
    return scale / (4 * checks.positive("epsilon", epsilon) ** 2)


def _gram(rows: Matrix, ridge: float) -> Matrix:
    return np.asarray(rows @ rows.T + checks.non_negative("ridge", ridge) * np.eye(len(rows)))


def _factor(rows: Matrix, ridge: float) -> float:
    """z of Equation 21: the sum of k/(k + λ)²."""
    eigenvalues = np.linalg.eigvalsh(_gram(rows, 0.0))
    tiny = len(eigenvalues) * np.finfo(float).eps * eigenvalues[-1]
    if ridge == 0 and eigenvalues[0] <= tiny:
        raise InvalidData(
            f"x x' of {rows.shape[1]} images in {len(rows)} dimensions has no inverse. Pass more "
            "images than dimensions, or a ridge above 0."
        )
    kept = np.maximum(eigenvalues, 0.0)
    return float(np.sum(kept / (kept + checks.non_negative("ridge", ridge)) ** 2))

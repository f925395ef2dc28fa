"""The only package that draws privacy noise. A mechanism is a frozen value that states its cost.

| mechanism | releases | pure epsilon | sampler |
|---|---|---|---|
| `BitFlip` | bits, each flipped with probability beta | yes | exact |
| `Laplace` / `DiscreteLaplace` | a vector, l1 sensitivity | yes | float / exact |
| `Gaussian` / `DiscreteGaussian` | a vector, l2 sensitivity | (epsilon, delta) | float / exact |
| `Staircase` | numbers, sensitivity per coordinate (SCDF) | yes | float |
| `Duchi` | vectors in a box, as corners of a larger box | yes | float |
| `PrivUnit` | unit vectors, as random unit vectors | yes | float |
| `KaryResponse` | one of k cells | yes | exact |
| `SubsetSelection` | a subset of k cells | yes | exact |
| `NoisyTopK` | the indices of the largest scores | yes | float |

A mechanism has `unit`, `neighbours`, `cost`, `domain` (into which any value can be projected),
`release`, `log_prob`, `worst_pair`, `sampler` and `says`. `Mechanism` is the protocol, and
`register` lets files name a mechanism of your own.

An "exact" sampler draws integers only, so that the low bits of a floating-point number cannot
reveal the input (Mironov 2012); use these mechanisms for values that are published. A "float"
sampler is faster and meant for values that stay with the owner, such as gradients. Guarantees state
the sampler.
"""

from __future__ import annotations

from blindsight.privacy.mechanisms.base import Mechanism, from_fields, register, to_fields
from blindsight.privacy.mechanisms.duchi import Duchi, PrivUnit
from blindsight.privacy.mechanisms.gaussian import DiscreteGaussian, Gaussian
from blindsight.privacy.mechanisms.kary import BitFlip, KaryResponse, NoisyTopK, SubsetSelection
from blindsight.privacy.mechanisms.laplace import DiscreteLaplace, Laplace, Staircase

__all__ = [
    "BitFlip",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Duchi",
    "Gaussian",
    "KaryResponse",
    "Laplace",
    "Mechanism",
    "NoisyTopK",
    "PrivUnit",
    "Staircase",
    "SubsetSelection",
    "from_fields",
    "register",
    "to_fields",
]

for _mechanism in (
    BitFlip,
    DiscreteGaussian,
    DiscreteLaplace,
    Duchi,
    Gaussian,
    KaryResponse,
    Laplace,
    NoisyTopK,
    PrivUnit,
    Staircase,
    SubsetSelection,
):
    register(_mechanism)

"""The only place that draws privacy noise: each mechanism a frozen value that knows what it costs.

| mechanism | releases | pure? | sampler |
|---|---|---|---|
| `BitFlip` | bits, each flipped with probability beta | yes | exact |
| `Laplace` / `DiscreteLaplace` | a vector, l1 sensitivity | yes | float / exact |
| `Gaussian` / `DiscreteGaussian` | a vector, l2 sensitivity | (epsilon, delta) | float / exact |
| `Staircase` | numbers, sensitivity per coordinate (SCDF) | yes | float |
| `Duchi` | vectors in a box, to corners of a larger box | yes | float |
| `PrivUnit` | unit vectors, to other unit vectors | yes | float |
| `KaryResponse` | one of k cells | yes | exact |
| `SubsetSelection` | a subset of k cells | yes | exact |
| `NoisyTopK` | the indices of the largest scores | yes | float |

A mechanism has `unit`, `neighbours`, `cost`, `domain` (which any value can be projected into),
`release`, `log_prob`, `worst_pair`, `sampler` and `says`; `Mechanism` is the protocol, and
`register` makes one of your own known to files.

"exact" draws with integers only, so that the low bits of a float cannot betray the input (Mironov
2012); use those for what outsiders see. "float" is fast and meant for what stays inside, such as
gradients; guarantees say which.
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

"""Secure sums at the speed of masks: a one-time lattice pad over the vector, and only its short key
to be summed.

    b_i = a·s_i + t·e_i + m_i      Σ b_i - a·Σ s_i = t·Σ e_i + Σ m_i,   read off modulo t

in Z_q[x]/(x^N + 1): `ring` has the arithmetic, `parameters` the sizes, `sampler` the secrets,
`cipher` the scheme, `stream` the random bytes.
docs/federated-protocol.md has the argument.
"""

from blindsight.federated.sums.pad.cipher import PadSum, new_secret, pad
from blindsight.federated.sums.pad.parameters import Parameters, choose

__all__ = ["PadSum", "Parameters", "choose", "new_secret", "pad"]

"""One-time lattice pads: padded vectors can be added; the sum of their short keys opens the sum.

    b_i = a·s_i + t·e_i + m_i      Σ b_i - a·Σ s_i = t·Σ e_i + Σ m_i,   reduced modulo t

in Z_q[x]/(x^N + 1). `ring` has the arithmetic, `parameters` the sizes, `sampler` the random bytes
and secrets, `bits` the packing, and `cipher` the scheme. docs/federated-protocol.md has the
argument.
"""

from blindsight.federated.sums.pad.cipher import PadSum, new_secret, pad
from blindsight.federated.sums.pad.parameters import Parameters, choose

__all__ = ["PadSum", "Parameters", "choose", "new_secret", "pad"]

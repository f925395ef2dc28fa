"""Asymmetric deep supervised hashing (Jiang and Li 2018): a network for queries, free codes for the
database.

min over V in {-1, +1} and the network F, u_i = tanh(F(x_i)), of
    sum over sampled i, all j of (u_i'v_j - c S_ij)^2 + gamma sum over sampled i of |v_i - u_i|^2.
Images with the same labels have the same S, so that all sums over the database are sums over its
distinct label sets: no n x m matrix. Dissimilar pairs get S = -r with r the ratio of similar to
dissimilar pairs, not -1, or the many dissimilar ones make everything collapse.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks, codes
from blindsight.hashing import networks
from blindsight.hashing.deep import DeepHasher, Progress
from blindsight.privacy.entropy import RandomState

__all__ = ["ADSH"]

Array = NDArray[Any]


class ADSH(DeepHasher):
    """`n_epochs` outer rounds: sample `n_sampled` images, train the network on them, then update
    all codes V.

    `database_codes_` are the learned V of the training images. They are little more than their
    labels: releasing them, even flipped, releases labels. `transform` always uses the network.
    """

    def __init__(
        self,
        n_bits: int = 32,
        *,
        n_epochs: int = 10,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        hidden: int = 256,
        n_sampled: int = 5000,
        gamma: float = 200.0,
        random_state: RandomState = None,
    ) -> None:
        super().__init__(
            n_bits,
            n_epochs=n_epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            hidden=hidden,
            random_state=random_state,
        )
        self.n_sampled = n_sampled
        self.gamma = gamma

    def _train(
        self,
        network: Any,
        inputs: Array,
        labels: Array,
        rng: np.random.Generator,
        progress: Progress | None,
    ) -> None:
        torch = networks.torch()
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate, weight_decay=1e-5)
        n, gamma = len(inputs), checks.non_negative("gamma", self.gamma)
        groups = _Groups(labels)
        V = np.where(rng.random((n, self.n_bits)) < 0.5, np.float32(-1), np.float32(1))
        for epoch in range(self.n_epochs):
            chosen = rng.permutation(n)[: min(checks.whole("n_sampled", self.n_sampled), n)]
            gram = torch.from_numpy(V.T @ V)
            pull = groups.pull(V)  # row g: sum over j of S_gj v_j
            network.train()
            for start in range(0, len(chosen), self.batch_size):
                rows = chosen[start : start + self.batch_size]
                u = torch.tanh(network(torch.from_numpy(inputs[rows])))
                target = torch.from_numpy(pull[groups.index[rows]])
                fit = ((u @ gram) * u).sum() - 2 * self.n_bits * (u * target).sum()
                near = gamma * (u - torch.from_numpy(V[rows])).square().sum()
                loss = (fit + near) / (len(rows) * n * self.n_bits)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            U = np.tanh(networks.forward(network, inputs[chosen]))
            V = self._update(V, U, chosen, groups, gamma)
            if progress is not None:
                progress(epoch + 1, self.n_epochs)
        self.database_codes_ = codes.from_signs(V)

    def _update(self, V: Array, U: Array, chosen: Array, groups: _Groups, gamma: float) -> Array:
        """The paper's Equation 10, column by column: V_k = -sign(2 V_other U_other'U_k + Q_k)."""
        Q = -2 * self.n_bits * groups.pull(U, chosen)[groups.index]
        Q[chosen] -= 2 * gamma * U
        gram = U.T @ U
        V = V.copy()
        for k in range(self.n_bits):
            others = V @ gram[:, k] - V[:, k] * gram[k, k]
            V[:, k] = np.where(2 * others + Q[:, k] > 0, np.float32(-1), np.float32(1))
        return V


class _Groups:
    """Images by their label set: S between two sets, and sums over a set's images."""

    def __init__(self, labels: Array) -> None:
        sets, index = np.unique(labels, axis=0, return_inverse=True)
        self.index: Array = index.ravel()
        similar = (sets @ sets.T > 0).astype(np.float32)
        size = np.bincount(self.index, minlength=len(sets)).astype(np.float64)
        positive = float(size @ similar @ size)
        ratio = positive / max(float(size.sum() ** 2 - positive), 1.0)
        self.S = np.where(similar > 0, 1.0, -min(ratio, 1.0)).astype(np.float32)

    def pull(self, values: Array, rows: Array | None = None) -> Array:
        """Row g: the sum over images j (all, or `rows`) of S_gj times their values."""
        index = self.index if rows is None else self.index[rows]
        sums = np.zeros((len(self.S), values.shape[1]), dtype=np.float32)
        np.add.at(sums, index, values)
        return self.S @ sums

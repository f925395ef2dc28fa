"""A bound on what lying users can do: separate sums of groups of users, and their median.

A secure sum hides single updates, so nobody sees that one of them is far too large. With
`Settings(groups=G)` users are divided into G groups, user u into group (u - 1) mod G. The sums
that users accept belong to the groups in turn: a user contributes to its own group's sums only, and
refuses a result whose set names a user of another group. After one sum of each group the model
moves by the median of the G means, coordinate by coordinate.

*Claim.* If at most (G - 1) / 2 users lie, every coordinate of the median lies between the smallest
and the largest of the honest groups' means. *Proof.* Each liar is in one group, so at least
(G + 1) / 2 groups, more than half, are honest. The median has at least (G + 1) / 2 values at or
below it, one of which is of an honest group, and as many at or above it. ∎

A user's update is in one sum of a model. The sums that are opened are those of N / G users instead
of N. What remains: liars may choose among the values between the honest groups' means, and liars
in more than half of the groups are not bounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blindsight.federated.sums.messages import RoundSum
from blindsight.federated.sums.settings import Settings
from blindsight.federated.sums.wire import Reader, Writer

__all__ = ["GroupMeans"]


class GroupMeans:
    """Collects the groups' sums of one model; with one group the mean is there at once.

    Parameters:
        settings: the settings of the federation.

    Examples:
        >>> means = GroupMeans(Settings(dimension=1, users=9, groups=3, bound=1.0, bits=2))
        >>> [means.add(RoundSum((1, 4, 7), np.array([x]))) for x in (0, 3)]
        [None, None]
        >>> means.add(RoundSum((3, 6, 9), np.array([1])))
        array([0.33333333])
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sums: list[RoundSum] = []
        self.contributors: tuple[int, ...] = ()

    def add(self, opened: RoundSum) -> NDArray[np.float64] | None:
        """Add the next group's sum.

        Returns:
            The median of the groups' means once the last group's sum is there, otherwise None.
            `contributors` then holds everybody who is in it.
        """
        self._sums.append(opened)
        if len(self._sums) < self._settings.groups:
            return None
        decode = self._settings.code.decode
        means = [decode(group.values) / len(group.contributors) for group in self._sums]
        self.contributors = tuple(sorted(u for group in self._sums for u in group.contributors))
        self._sums = []
        return np.asarray(np.median(np.stack(means), axis=0))

    @property
    def waiting(self) -> bool:
        """Whether sums of some groups of the current model are there."""
        return bool(self._sums)

    def dump(self) -> bytes:
        """The sums that wait for the other groups'."""
        writer = Writer().number("I", len(self._sums))
        for opened in self._sums:
            writer.field(opened.encode())
        return bytes(writer)

    @classmethod
    def load(cls, settings: Settings, data: bytes) -> GroupMeans:
        """Continue from what `dump` wrote."""
        reader, result = Reader(data), cls(settings)
        for _ in range(reader.number("I")):
            result._sums.append(RoundSum.decode(reader.field(), users=settings.users))
        reader.end()
        return result

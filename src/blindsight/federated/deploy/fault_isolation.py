"""Finding users who spoil sums, by halving.

Nobody can see who sent nonsense: that is what the encryption is for. But the aggregator may leave
users out. After a sum that fails, all its users are suspects; each further sum leaves half of the
suspects out. A sum that succeeds clears its users, and one that fails narrows the suspects to those
who were in it. A user is excluded for good when it was the only suspect in a failed sum and a later
sum without it succeeds, so nobody is excluded for what others did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from blindsight.core.errors import ProtocolError

__all__ = ["FaultIsolation"]

_MOST_FAILURES = 40  # in a row; a search takes about log2(users) of them


class FaultIsolation:
    """Which users are suspected of spoiling sums, and which are excluded."""

    def __init__(
        self,
        *,
        excluded: Iterable[int] = (),
        suspects: Iterable[int] = (),
        condemned: int = 0,
        failures: int = 0,
    ) -> None:
        self.excluded, self.suspects = set(excluded), set(suspects)
        self.condemned, self.failures = condemned, failures

    def proposals(self, present: Collection[int]) -> Iterator[set[int]]:
        """Sets of users to sum next, the most informative first."""
        usable = set(present) - self.excluded
        doubted = sorted(self.suspects & usable)
        if doubted:
            half = (len(doubted) + 1) // 2
            yield usable - set(doubted[:half])
            yield usable - set(doubted[half:])
            yield usable - set(doubted)
        yield usable

    def succeeded(self, users: Collection[int]) -> int | None:
        """A sum over these users came out right; returns the user that is now excluded, if any."""
        self.failures = 0
        self.suspects -= set(users)
        if self.condemned and self.condemned not in users:
            guilty, self.condemned = self.condemned, 0
            self.excluded.add(guilty)
            self.suspects.discard(guilty)
            return guilty
        self.condemned = 0
        return None

    def failed(self, users: Collection[int]) -> None:
        """A sum over these users gave nothing: at least one of them spoilt it."""
        self.failures += 1
        included = self.suspects & set(users)
        self.suspects = included or set(users)
        self.condemned = next(iter(self.suspects)) if len(self.suspects) == 1 else 0
        if self.failures > _MOST_FAILURES:
            raise ProtocolError(
                f"{self.failures} sums in a row failed, and who spoils them could not be found. "
                "Set the federation up again without the users in doubt."
            )

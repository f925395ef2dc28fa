"""Finding users who spoil sums, by halving.

Nobody can see who sent nonsense: that is what the encryption is for. But the aggregator may leave
users out. After a sum that fails, all its users are suspects; each further sum leaves half of the
suspects out. A sum that succeeds clears its users, and one that fails narrows the suspects to those
who were in it.

A user who spoils only some sums may be cleared by chance, so successes guide the search and prove
nothing. What convicts is failed sums: a single spoiler is in every one of them. Once one suspect is
left, further sums contain it and leave out half of the others who were in every failed sum, until
it is the only one. It is excluded for good when a later sum without it succeeds. With one spoiler,
nobody is excluded for what others did, however rarely it spoils.

A sum that the aggregator opened may still be refused by the users, who check its tag. What the
opening seemed to prove is then taken back (`withdrawn`), and the sum counts as one that failed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import TypedDict

from blindsight.core.errors import ProtocolError

__all__ = ["FaultIsolation"]

_MOST_FAILURES = 40  # in a row; a search takes about log2(users) of them


class _State(TypedDict):
    excluded: list[int]
    suspects: list[int]
    condemned: int
    failures: int
    failed_set: list[int]
    in_every: list[int]


class FaultIsolation:
    """Which users are suspected of spoiling sums, and which are excluded."""

    def __init__(
        self,
        *,
        excluded: Iterable[int] = (),
        suspects: Iterable[int] = (),
        condemned: int = 0,
        failures: int = 0,
        failed_set: Iterable[int] = (),
        in_every: Iterable[int] = (),
    ) -> None:
        self.excluded, self.suspects = set(excluded), set(suspects)
        self.condemned, self.failures = condemned, failures
        self.failed_set = tuple(failed_set)  # the users of the last sum, if it failed
        self.in_every = set(in_every)  # users who were in every failed sum of this search
        self._before: _State | None = None  # should users refuse the last sum that succeeded

    def _restore(self, state: _State) -> None:
        self.excluded, self.suspects = set(state["excluded"]), set(state["suspects"])
        self.condemned, self.failures = state["condemned"], state["failures"]
        self.failed_set, self.in_every = tuple(state["failed_set"]), set(state["in_every"])

    def _state(self) -> _State:
        return {
            "excluded": sorted(self.excluded),
            "suspects": sorted(self.suspects),
            "condemned": self.condemned,
            "failures": self.failures,
            "failed_set": list(self.failed_set),
            "in_every": sorted(self.in_every),
        }

    def dump(self) -> bytes:
        """The state, with that before the last success, as bytes."""
        return json.dumps([self._state(), self._before]).encode()

    @classmethod
    def load(cls, data: bytes) -> FaultIsolation:
        """Continue from what `dump` wrote."""
        state, before = json.loads(data)
        isolation = cls(**state)
        isolation._before = before
        return isolation

    def proposals(self, present: Collection[int]) -> Iterator[set[int]]:
        """Sets of users to sum next, the most informative first."""
        usable = set(present) - self.excluded
        doubted = sorted(self.suspects & usable)
        if len(doubted) == 1 and self.condemned != doubted[0]:
            # Suspected, but others were in every failed sum as well: sums with it and without them.
            others = sorted(self.in_every & usable - set(doubted))
            half = (len(others) + 1) // 2
            yield usable - set(others[:half])
            yield usable - set(others[half:])
        if doubted:
            half = (len(doubted) + 1) // 2
            yield usable - set(doubted[:half])
            yield usable - set(doubted[half:])
            yield usable - set(doubted)
        yield usable

    def succeeded(self, users: Collection[int]) -> int | None:
        """A sum over these users came out right; returns the user that is now excluded, if any."""
        self._before = self._state()
        self.failures, self.failed_set = 0, ()
        self.suspects -= set(users)
        if self.condemned and self.condemned not in users:
            guilty, self.condemned = self.condemned, 0
            self.excluded.add(guilty)
            self.suspects.discard(guilty)
            self.in_every = set()
            return guilty
        self.condemned = 0
        if not self.suspects:  # the search ended without a result
            self.in_every = set()
        return None

    def withdrawn(self, users: Collection[int]) -> None:
        """The last sum that succeeded was over these users, and users refuse it: it failed."""
        if self._before is not None:
            self._restore(self._before)
        self.failed(users)

    def failed(self, users: Collection[int]) -> None:
        """A sum over these users gave nothing: at least one of them spoilt it.

        Raises:
            ProtocolError: too many sums in a row failed.
        """
        self.failures += 1
        self.failed_set, self._before = tuple(sorted(users)), None
        # Empty where nothing failed before, or where more than one user spoils sums.
        self.in_every = self.in_every & set(users) or set(users)
        # A suspect who is not in every failed sum is none; then the search starts from those.
        self.suspects = self.suspects & self.in_every or set(self.in_every)
        self.condemned = next(iter(self.in_every)) if len(self.in_every) == 1 else 0
        if self.failures > _MOST_FAILURES:
            raise ProtocolError(
                f"{self.failures} sums in a row failed, and who spoils them could not be found. "
                "Set the federation up again without the users in doubt."
            )

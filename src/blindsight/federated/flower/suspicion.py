"""Who is summed after a round that gave no sum: half of the groups, until one alone spoils its sum.

Nobody can see who sent nonsense: that is what the encryption is for. But the rules let the
aggregator sum any whole groups, and one of those in a failed round is to blame. So the next round
takes half of them: a sum that comes clears its groups for now, and one that does not halves the
doubt. A group is left out for good only when it failed alone, so one who spoils now and then cannot
have others left out; it costs about log2(groups) rounds each time, and each time a round ends
without it. It slows the federation and does not stop it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blindsight.core.errors import ProtocolError

__all__ = ["Suspicion"]

_MOST = 40  # failures in a row; a search takes log2(groups) of them


class Suspicion:
    """Which groups, by number, are in doubt, and which are left out."""

    def __init__(self, *, excluded: Iterable[int] = (), suspects: Iterable[int] = ()) -> None:
        self.excluded, self.suspects = set(excluded), set(suspects)
        self._failures = 0

    def choose(self, present: Sequence[int], sizes: Sequence[int], least: int) -> list[int]:
        """The groups to sum next: all that are not excluded, or half of those in doubt.

        Where that is fewer than `least` users, others come in, those who are not in doubt first.
        """
        chosen = [group for group in present if group not in self.excluded]
        doubted = [group for group in chosen if group in self.suspects]
        if not doubted:
            return chosen
        half = (len(doubted) + 1) // 2
        taken, users = doubted[:half], sum(sizes[group] for group in doubted[:half])
        for group in [*(group for group in chosen if group not in self.suspects), *doubted[half:]]:
            if users < least:
                taken.append(group)
                users += sizes[group]
        return sorted(taken)

    def succeeded(self, used: Iterable[int]) -> None:
        """A sum came of these: they are cleared, for now."""
        self.suspects.difference_update(used)
        self._failures = 0

    def failed(self, used: Iterable[int]) -> int | None:
        """None came: it is one of these.

        The group that is found, if it is alone; it is excluded from now on.
        """
        found = set(used)
        self._failures += 1
        if len(found) == 1:
            self.excluded |= found
            self.suspects.clear()
            return found.pop()
        if found == self.suspects or self._failures > _MOST:
            raise ProtocolError(
                f"rounds give no sum, and of the {len(found)} groups in doubt too few users could "
                "be left out to find "
                "whose fault it is. Set the federation up again without them."
            )
        self.suspects = found
        return None

"""A user's noise is fresh and forgotten: why it is not derived from the vault in its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.methods.federated_cheats import Stage
from blindsight.federated.agreement import agree
from blindsight.federated.noise import GaussianShares
from blindsight.federated.sums import User
from blindsight.federated.sums.messages import holder
from blindsight.privacy.entropy import SystemEntropy
from blindsight.privacy.vault import Vault

WEIGHTS = 40


def _noise() -> GaussianShares:
    agreed = agree(dimension=WEIGHTS, users=5, rounds=1, epsilon=0.5, least_users=4)
    noise = agreed.settings.noise
    assert isinstance(noise, GaussianShares)
    return noise


def _guesses(
    observed: NDArray[np.int64], candidates: NDArray[np.float64], vault: Path
) -> list[int]:
    """The candidates from which a thief of the vault computes what was observed."""
    source = Vault(vault).training_source("0" * 32)
    return [
        number
        for number, update in enumerate(candidates)
        if np.array_equal(
            _noise().share(update, rng=source.value_stream("round 1", update, exact=True)), observed
        )
    ]


def test_noise_from_a_stored_key_would_show_the_update_to_a_thief(tmp_path: Path) -> None:
    """Everybody else colludes, so one user's share is known; its folder is stolen after the round.

    Were its noise a function of the vault's key, the thief would test guesses of the update and be
    right every time, whatever epsilon. With fresh noise nothing that was stored fits any guess.
    """
    vault = tmp_path / "vault"
    source = Vault.create(vault).training_source("0" * 32)
    candidates = np.random.default_rng(0).uniform(-0.1, 0.1, (20, WEIGHTS))
    for number, update in enumerate(candidates):
        stream = source.value_stream("round 1", update, exact=True)
        derived = _noise().share(update, rng=stream)
        assert _guesses(derived, candidates, vault) == [number]
    fresh = _noise().share(candidates[3], rng=SystemEntropy())
    assert _guesses(fresh, candidates, vault) == []


class _KeepsOpenings(Stage):
    """A cheating aggregator that keeps the openings of its last round."""

    def open(self, number: int, model: bytes = bytes(32)) -> None:
        self.sent = {}
        self.openings = {
            each.to: each.data for each in self.simulation.aggregator.open_round(number, model)
        }
        for number, opening in self.openings.items():
            self.sent[number] = self.contribute(self.simulation.users[number], opening)

    def contribute(self, user: User, opening: bytes) -> bytes:
        user.receive(opening)
        return user.contribute(self.updates[user.number - 1])[0].data


def test_a_user_put_back_in_time_has_fresh_noise_and_its_round_is_not_opened_again() -> None:
    """What derived noise prevents elsewhere, the key holders prevent here.

    Two contributions of one update with independent noise would tell more than one. Holders open
    one sum per round, so that the second contribution never leaves its pad.
    """
    agreed = agree(dimension=60, users=6, rounds=1, epsilon=4.0, least_users=4).settings
    stage = _KeepsOpenings(
        rounds=1, noise=agreed.noise, bound=agreed.bound, bits=agreed.bits, least_users=4
    )
    restored = User(stage.simulation.users[1].enrolment)
    second = stage.contribute(restored, stage.openings[1])
    assert second != stage.sent[1]
    key_holder = stage.simulation.holders[holder(1)]
    [answer] = key_holder.receive(stage.collect(stage.everybody, 1))
    stage.sent[1] = second
    [again] = key_holder.receive(stage.collect(stage.everybody, 1))
    assert again.data == answer.data, "the key of the first contribution, once more"
    assert stage.ask(stage.everybody[:-1]) == "ROUND"

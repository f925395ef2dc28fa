"""Five clinics, one classifier: updates are added up under pads, and nobody sees one.

Then the same rounds are attacked, once as the paper prints them and once as we run them: what does
a curious aggregator get of one clinic's update?

Run it: python docs/examples/federated_digits.py
"""

from __future__ import annotations

import numpy as np

from blindsight import data
from blindsight.audit.methods import federated as federation
from blindsight.audit.methods import federated_cheats as cheats
from blindsight.federated import FederatedClassifier


def learn() -> FederatedClassifier:
    """Two rounds over five owners; a classifier of the public rows alone is where they start."""
    digits = data.load("digits")
    X, y = digits.array().reshape(len(digits), -1) / 16.0, np.asarray(digits.labels)
    owner = np.arange(1000) % 5
    model = FederatedClassifier(rounds=2, random_state=0).fit(
        X[200:1200],
        y[200:1200],
        groups=owner,
        public=(X[:200], y[:200]),
        test=(X[1200:], y[1200:]),
    )
    for entry in model.rounds_:
        print(
            f"round {entry.round}: {entry.users} owners, {entry.bytes:,.0f} bytes each, "
            f"{entry.accuracy:.3f} right"
        )
    return model


def attack() -> None:
    """The paper's rounds attacked by messages alone, and every way to cheat that was tried on
    ours.
    """
    for name, run in {
        "support de-permuted": federation.support_intersection,
        "weights of a single owner": federation.single_contributors,
        "subtracting two sums": federation.subset_subtraction,
        "one owner passed off as sum": federation.single_user_decryption,
    }.items():
        print(f"{name:>28}  {run(seed=0).value:>6.0%} in the paper's rounds")
    tried = cheats.stopped_by()
    print(f"{sum(map(bool, tried.values()))} of {len(tried)} ways to cheat are stopped in ours")


def main() -> FederatedClassifier:
    """Learn, attack, and say who sees what."""
    model = learn()
    attack()
    print(model.disclosure_.card())
    print(model.guarantee_.line())
    return model


if __name__ == "__main__":
    main()

"""Every verb that releases something, on tiny data, for `test_state_matrix`.

`python -m app.releasing_verbs VERB FOLDER WRITES` runs a verb and kills itself where it is told.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from blindsight.app import labelled_images
from blindsight.app.budget import grant_budget
from blindsight.app.learn_metric import learn_metric
from blindsight.app.protect import protect
from blindsight.app.send import send_statistics
from blindsight.app.sketch import sketch
from blindsight.app.tag import publish_tags
from blindsight.app.train_tagger import train_tagger
from blindsight.data.confined import ConfinedReader
from blindsight.data.reading import decode_here
from blindsight.federated.agreement import agree
from blindsight.federated.deploy.folders import PartyFolder, accept, join, make_roster
from blindsight.federated.deploy.plan import Plan
from blindsight.federated.deploy.running import charge as charge_federation
from blindsight.federated.learning import initial_weights
from blindsight.federated.sums import Role
from blindsight.index import HammingIndex
from blindsight.privacy import Ledger
from blindsight.privacy.vault import Vault
from blindsight.privacy.vault_store import VaultStore
from blindsight.sketching import SketchSet
from blindsight.tagging import CodebookAnswers, Prior, PrivateTagger
from blindsight.tagging.guarantee import AnswerCodebook

__all__ = ["VERBS", "Owner", "Verb", "work_in_this_process"]

PHOTOS, SIDE = 16, 4
RECORD, REMOVED = ("record", "replace one"), ("record", "add or remove one")


def work_in_this_process() -> None:
    """Our own pictures need no confined process, and few public ones suffice for a basis."""

    def decode(self: ConfinedReader, data: bytes, **options: Any) -> Any:
        return decode_here(data, **options)

    ConfinedReader.decode = decode  # type: ignore[method-assign]
    labelled_images.BUILT_IN_PICTURES = 5


class Owner:
    """Photos, labels, pairs and a model; a vault, a ledger, and what outsiders were given."""

    def __init__(self, base: Path) -> None:
        self.base, self.photos = base, base / "photos"
        self.vault, self.ledger = base / "vault", base / "budget.db"

    @classmethod
    def create(cls, base: Path) -> Owner:
        owner = cls(base)
        owner.photos.mkdir(parents=True)
        rng = np.random.default_rng(0)
        labels, pairs = ["image,labels"], ["a,b,same"]
        for number in range(PHOTOS):
            bright = 128 * (number % 2)
            pixels = rng.integers(bright, bright + 128, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(owner.photos / f"{number}.png")
            labels.append(f"{number}.png,{'bright' if bright else 'dark'}")
            pairs.append(f"{number}.png,{(number + 1) % PHOTOS}.png,{number % 3 == 0:d}")
        (base / "labels.csv").write_text("\n".join(labels))
        (base / "pairs.csv").write_text("\n".join(pairs))
        prior = Prior(rng.normal(size=(2, 3 * SIDE**2)), np.zeros(2))
        words = AnswerCodebook(np.eye(2), np.ones(2))
        tagger = PrivateTagger.from_public(["bright", "dark"], prior)
        tagger.public_["extractor"] = {"kind": "pixels", "size": SIDE}
        tagger.with_answers(CodebookAnswers(2.0, words=words)).save(base / "model.safetensors")
        Vault.create(owner.vault)
        _federation(base)
        return owner

    def grant(self, verb: str, dataset: str = "photos") -> None:
        """Give a data set budgets in the units that a verb charges."""
        for unit, neighbours in VERBS[verb].budgets:
            grant_budget(
                self.ledger, dataset, epsilon=1e4, delta=1e-2, unit=unit, neighbours=neighbours
            )

    def spent(self) -> dict[tuple[str, str], float]:
        """What every account of the ledger has spent."""
        with Ledger(self.ledger, dataset="photos") as ledger:
            return {(b.unit, b.neighbours): float(b.spent.epsilon) for b in ledger.balances()}

    def account(self) -> dict[str, Any]:
        return {
            "vault": self.vault,
            "ledger": self.ledger,
            "dataset": "photos",
            "actor": "Anna",
            "purpose": "a study",
        }


def _federation(base: Path) -> None:
    rng = np.random.default_rng(1)
    plan = Plan(
        initial=initial_weights(rng.random((20, 2)), np.arange(20) % 2, classes=2),
        scale=np.vstack([np.zeros(2), np.ones(2)]),
        classes=2,
        rounds=1,
    )
    agreed = agree(
        dimension=len(plan.initial), users=5, rounds=1, epsilon=4.0, least_users=4
    ).settings
    folders = [
        join(base / "parties" / f"{n}", f"Site {n}", Role.USER | Role.HOLDER) for n in range(5)
    ]
    folders.append(
        join(base / "parties" / "c", "Collector", Role.AGGREGATOR, address="127.0.0.1:9")
    )
    roster = make_roster(agreed, plan, [folder.request for folder in folders])
    accept(folders[0], roster)
    Vault.create(base / "parties" / "0" / "vault")


def _protect(owner: Owner) -> Any:
    protect(owner.photos, owner.base / "release", encoder="pixels", **owner.account())
    codes = HammingIndex.load(owner.base / "release" / "codes.index")
    return sorted(
        (str(name), code.tobytes().hex())
        for ids, rows in codes.items()
        for name, code in zip(ids, rows, strict=True)
    )


def _tag_train(owner: Owner) -> Any:
    out = owner.base / "tagger.safetensors"
    train_tagger(
        owner.photos,
        labels=owner.base / "labels.csv",
        vocabulary="bright,dark",
        features="pixels",
        size=SIDE,
        out=out,
        **owner.account(),
    )
    return hashlib.sha256(out.read_bytes()).hexdigest()


def _tag_publish(owner: Owner) -> Any:
    tags = publish_tags(owner.base / "model.safetensors", owner.photos, **owner.account())
    return [(image.image, image.tags) for image in tags.images]


def _metric_learn(owner: Owner) -> Any:
    out = owner.base / "metric.safetensors"
    learn_metric(
        owner.base / "pairs.csv",
        images=owner.photos,
        encoder="pixels",
        out=out,
        n_components=2,
        loss="plain",
        **owner.account(),
    )
    return hashlib.sha256(out.read_bytes()).hexdigest()


def _sketch_make(owner: Owner) -> Any:
    out = owner.base / "flipped.sketches"
    if out.exists():
        out.unlink()  # lost, or given away
    sketch(owner.photos, out, flip_epsilon=2.0, **owner.account())
    return hashlib.sha256(np.ascontiguousarray(SketchSet.open(out).counts).tobytes()).hexdigest()


def _send(owner: Owner) -> Any:
    out = owner.base / "sent.statistics"
    send_statistics(
        owner.photos,
        out,
        epsilon=8.0,
        labels=owner.base / "labels.csv",
        classes="bright,dark",
        encoder="pixels",
        **owner.account(),
    )
    return hashlib.sha256(out.read_bytes()).hexdigest()


def _federate(owner: Owner) -> Any:
    with Ledger(owner.ledger, dataset="photos", actor="Anna", purpose="a study") as ledger:
        return str(charge_federation(PartyFolder(owner.base / "parties" / "0"), ledger).epsilon)


@dataclass(frozen=True)
class Verb:
    """A verb of the command line.

    Parameters:
        run: releases something and returns it, as values that can be compared.
        budgets: units and neighbour relations that it charges.
        vault: the vault's folder within the owner's.
    """

    run: Callable[[Owner], Any]
    budgets: tuple[tuple[str, str], ...] = (RECORD,)
    vault: str = "vault"


VERBS = {
    "protect": Verb(_protect),
    "tag train": Verb(_tag_train, (RECORD, REMOVED)),
    "tag apply": Verb(_tag_publish, (RECORD,)),
    "compare learn": Verb(_metric_learn, (("label", "replace one"), REMOVED)),
    "send make": Verb(_send, (RECORD, REMOVED)),
    "sketch make": Verb(_sketch_make, (("pixel", "replace one"),)),
    "federate run": Verb(_federate, (RECORD, ("user", "replace one")), "parties/0/vault"),
}


def _run_and_die(verb: str, base: str, commits: int) -> None:
    """Run a verb; die by kill -9 after so many writes of its vault (0: after the last line)."""
    done = 0
    original = VaultStore.writing

    @contextmanager
    def writing(self: VaultStore) -> Any:
        nonlocal done
        with original(self) as connection:
            yield connection
        done += 1
        if done == commits:
            os.kill(os.getpid(), signal.SIGKILL)

    VaultStore.writing = writing  # type: ignore[method-assign,assignment]
    VERBS[verb].run(Owner(Path(base)))
    if commits:  # it needed fewer writes
        os._exit(3)
    print(done, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    work_in_this_process()
    _run_and_die(sys.argv[1], sys.argv[2], int(sys.argv[3]))

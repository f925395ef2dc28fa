"""Train a tagger once and publish one answer per photo: stored in a vault and charged once.

A photo has the same published answer after a crash, from another folder or in another process: its
noise is a function of the vault's key, the content of the photo and the model (permanent randomised
response), and what was released is read back from the vault. So one charge of epsilon, under the
number of the release, covers every photo that this model publishes. Another model, mechanism or
epsilon is another release.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import durable, storage
from blindsight.core.arrays import Array
from blindsight.core.errors import InvalidParameter
from blindsight.privacy.door import Door
from blindsight.privacy.plan import plan_to_fields
from blindsight.privacy.vault import Vault
from blindsight.tagging import guarantee as guarantees
from blindsight.tagging.answers import Answers, CodebookAnswers, Exact
from blindsight.tagging.estimator import TRAINING, PrivateTagger
from blindsight.tagging.labels import FromLabels, label_names, label_rows

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = ["publish", "release_of", "train_once"]

# Photos whose answers are noted in the vault together: what a crash leaves to be computed again.
_TOGETHER = 256


def publish(
    tagger: PrivateTagger,
    records: Sequence[str],
    rows: Callable[[list[int]], Any],
    *,
    vault: Vault,
    ledger: Ledger | None = None,
    account: Callable[[str], Any] | None = None,
    out: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Answers:
    """The published answer of each photo.

    `records` are the photos' ids (`Vault.record_of` their content); `rows(places)` gives the
    features of the photos at these places, and is asked for those only that were never answered.
    The ledger, or what `account` gives for the release's id (see `train_once`), is charged before
    the first answer, by the release's number: once. Without either, the vault notes the release,
    and the first run with a ledger pays for it.
    """
    way, single = tagger.answer_mechanism_, tagger.answer_guarantee_
    if single is None or isinstance(way, Exact):
        raise InvalidParameter(
            "exact answers protect no asked image: publish with answers=CodebookAnswers(...)."
        )
    if single.sampler != "exact":
        raise InvalidParameter(
            "permanent noise needs an exact sampler: CodebookAnswers, or Gaussian or Laplace noise."
        )
    promised = guarantees.of_publishing(single)
    about = _function(tagger, promised.releases)
    number = release_of(tagger, vault)
    first = {record: place for place, record in reversed(list(enumerate(records)))}
    kept = vault.codes(number)
    missing = sorted((record for record in first if record not in kept), key=first.__getitem__)
    law = way.noise(tagger.n_labels_)
    shape = np.asarray(
        law.release(way.value(np.zeros((1, tagger.n_labels_))), rng=np.random.default_rng(0))
    )
    what = "tags of photos, each released once"
    # Also where nothing is missing: charged once by its key, and whoever forgot the ledger before
    # pays now.
    charged: Any = vault.account(ledger, release=number, records=records, out=out)
    if account is not None:
        charged = account(number)
    charged.charge(promised.costs, what=what)
    for start in range(0, max(1, len(missing)), _TOGETHER):
        some = missing[start : start + _TOGETHER]
        source = vault.source(some, about=about)
        door = Door(promised, what=what, ledger=charged, random_state=source)
        if some:
            logits = tagger.logits(rows([first[record] for record in some]))
            drawn = door.release_each(guarantees.ANSWER, way.value(logits), some, about=about)
            codes = (
                np.ascontiguousarray(drawn.astype(shape.dtype))
                .reshape(len(some), -1)
                .view(np.uint8)
            )
            standing = vault.keep_codes(number, some, codes)
            kept |= {record: code.tobytes() for record, code in zip(some, standing, strict=True)}
        if progress is not None:
            progress(min(start + _TOGETHER, len(missing)), len(missing))
    told = np.frombuffer(b"".join(kept[record] for record in records), shape.dtype).reshape(
        -1, *shape.shape[1:]
    )
    return way.read(told)


def release_of(tagger: PrivateTagger, vault: Vault) -> str:
    """The number of the release that all published answers of this model belong to, in the vault
    and the ledger.
    """
    single = tagger.answer_guarantee_
    if single is None:
        raise InvalidParameter(
            "exact answers are no release: publish with answers=CodebookAnswers(...)."
        )
    return vault.release_of(_function(tagger, guarantees.of_publishing(single).releases))


def train_once(
    tagger: PrivateTagger,
    X: ArrayLike,
    y: ArrayLike,
    *,
    vault: Vault | None,
    ledger: Ledger | None = None,
    records: Sequence[str] = (),
    out: Path | None = None,
    account: Callable[[str], Any] | None = None,
    notes: Mapping[str, Any] | None = None,
    **options: Any,
) -> PrivateTagger:
    """Fit, keep the model in the vault, and charge it once; the same training run again gives the
    model that is kept.

    A model leaves after it was kept, never before: whatever a crash interrupts was seen by nobody,
    and may be tried again under the same charge. One record more or less, or another setting, is
    another release. `records` are the ids of the photos that are learned from: every account whose
    data set contains one of them is charged. `out` is where the model goes (`Vault.charge`).
    `account`, called with the release's id, gives what is
    charged in place of the ledger, for whoever charges further units. `notes` are public facts that
    the file states beside the tagger's own; `options` are `fit`'s. Without a vault nothing is kept:
    run again, it is another model.
    """
    if vault is None:
        tagger.fit(X, y, ledger=ledger, **options)
        tagger.public_ |= dict(notes or {})
        return tagger
    number = vault.release_of(_training(tagger, X, y, options.get("n_records")))
    place = vault.path / "models" / f"{number}.safetensors"
    simulated = ledger is None and tagger.random_state is not None
    charged: Any = (
        None if simulated else vault.account(ledger, release=number, records=records, out=out)
    )
    if account is not None:
        charged = account(number)
    if not place.exists():
        own = copy.copy(tagger)
        if tagger.random_state is None:
            own.random_state = vault.training_source(number)
        own.fit(X, y, ledger=charged, **options)
        own.public_ |= dict(notes or {})
        tagger.owner_only_ = own.owner_only_
        durable.make_folder(place.parent)
        made = place.parent / f".{secrets.token_hex(8)}.part"
        try:
            own.save(made)
            with contextlib.suppress(
                FileExistsError
            ):  # another process was faster: then its model stands
                durable.link_new(made, place)
        finally:
            durable.remove(made)
    kept = PrivateTagger.load(place)
    if charged is not None:
        charged.charge(kept.guarantee_.costs, what=TRAINING)
    kept.owner_only_ = getattr(tagger, "owner_only_", {})
    return kept


def _training(tagger: PrivateTagger, X: ArrayLike, y: ArrayLike, n_records: int | None) -> str:
    """Records, settings and public knowledge as text."""
    known = {"rows": np.asarray(X), "labels": label_rows(y)}
    if tagger.public is not None:
        known["public"] = np.asarray(tagger.public)
    if tagger.prior is not None:
        known |= {f"prior.{name}": value for name, value in tagger.prior.tables().items()}
    fields: dict[str, Any] = {
        "training": repr(tagger.training),
        "random_state": repr(tagger.random_state),
        "n_records": n_records,
    }
    # A large array's repr has dots where two of them differ: tables go by their bytes, names one by
    # one.
    answers, classes = tagger.answers, tagger.classes
    if isinstance(answers, CodebookAnswers) and answers.words is not None:
        told = answers.words.to_fields()
        known |= {
            f"answers.{key}": value for key, value in told.items() if isinstance(value, np.ndarray)
        }
        fields["words"] = {
            key: value for key, value in told.items() if not isinstance(value, np.ndarray)
        }
        answers = replace(answers, words=None)
    fields |= {"answers": repr(answers), "names": isinstance(classes, FromLabels)}
    fields["classes"] = (
        label_names(classes, known["labels"].shape[1]) if classes is not None else None
    )
    return storage.digest(TRAINING, known) + json.dumps(fields, sort_keys=True)


def _function(tagger: PrivateTagger, plan: Any) -> str:
    """Model and mechanism as text: what makes one release another."""
    tables: dict[str, Array] = {}
    fields: dict[str, Any] = {"releases": plan_to_fields(plan), "training": repr(tagger.training)}
    for part, values in (("public", tagger.public_), ("released", tagger.released_)):
        tables |= {
            f"{part}.{key}": value for key, value in values.items() if isinstance(value, np.ndarray)
        }
        fields[part] = {
            key: value for key, value in values.items() if not isinstance(value, np.ndarray)
        }
    text = storage.digest("published tags", tables) + json.dumps(fields, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

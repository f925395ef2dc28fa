"""Audit a fitted estimator, a mechanism, a saved model, sketches, or an index.

    found = audit(PHashing(epsilon=8).fit(X))       # or audit(Laplace(...)), audit_file("index")
    print(found.card.card())

A file does not contain the private data. The audit therefore runs the estimator's own `transform`
or answer on two other inputs that it distinguishes, and, where learning also releases something,
the same learning on toy data. The stated guarantee must also follow from the parameters stored
beside it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from blindsight.audit.engine.blackbox import Attack, attack_mechanism
from blindsight.audit.report.verdict import Room, Verdict
from blindsight.codebooks import Codebook
from blindsight.core import storage
from blindsight.core.codes import cell_bits
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.privacy import Disclosure, Guarantee
from blindsight.privacy.accounting import Planned
from blindsight.privacy.mechanisms import BitFlip, KaryResponse, Mechanism, SubsetSelection

if TYPE_CHECKING:
    from blindsight.audit.methods.hashing import PrivateHasher
    from blindsight.metric import DPPMetric
    from blindsight.sketching import CodebookSketcher, FlippedBits
    from blindsight.tagging import P2MLGCN, PrivateTagger

__all__ = ["Audit", "attacked_index", "audit", "audit_file"]

_SAME = (
    "Attacked: what it really releases of two inputs that it tells apart; no private data needed."
)
_DESCRIBED = (
    "Attacked: the release that the file describes, on the worst inputs there are; no private data "
    "needed."
)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The promise with the measured bound, and the verdict.

    `attacks` are all attacks that ran, the strongest first; `notes` say what was attacked and what
    was not; `others` are further promises of the same file.
    """

    name: str
    room: Room
    subject: Any
    card: Guarantee | Disclosure
    verdict: Verdict | None
    attacks: tuple[Attack, ...] = ()
    notes: tuple[str, ...] = ()
    others: tuple[tuple[str, Guarantee], ...] = ()


def audit(
    subject: object, *, name: str | None = None, trials: int = 200_000, seed: int = 0
) -> Audit:
    """Audit a fitted estimator, a set of sketches or a mechanism, unchanged.

    Parameters:
        subject: what to audit.
        name: its name in reports; by default the name of its class.
        trials: runs of each attack.
        seed: of the attacks.

    Raises:
        InvalidData: the subject promises nothing, or no attack on it is known.
    """
    name = name or type(subject).__name__
    if hasattr(subject, "release") and hasattr(subject, "cost"):
        return _mechanism(cast("Mechanism", subject), name, trials, seed)
    if isinstance(subject, Codebook):
        return _codebook(subject, name, trials, seed)
    # After codebooks: sketches need the extra `compiled`, and a release of photos does not.
    from blindsight.sketching import NegativeSketcher
    from blindsight.sketching.sketches import SketchSet

    if isinstance(subject, (SketchSet, NegativeSketcher)):
        return _sketches(subject, name, trials, seed)
    guarantee = getattr(subject, "guarantee_", None)
    if not isinstance(guarantee, Guarantee):
        raise InvalidData(
            f"{name} is a {type(subject).__name__}: it releases plain values and promises nothing."
        )
    for fits, handle in _HANDLERS:
        if fits(subject):
            return handle(subject, name, trials, seed)
    raise InvalidData(f"no attack is known for a {type(subject).__name__}.")


def audit_file(path: str | Path, *, trials: int = 200_000, seed: int = 0) -> Audit:
    """Audit a model file or an index (file or folder): load it, and `audit` what it holds."""
    source = Path(path)
    if not source.exists():
        raise InvalidData(f"{path} does not exist. Give a saved model, sketches, or an index.")
    if source.is_dir():
        return _folder(source, trials, seed)
    from blindsight.index.index_file import is_index

    if is_index(source):
        return _index(source, trials, seed)
    kind, _, _ = storage.load_any(source)
    if kind not in _READERS:
        raise InvalidData(f"{path} holds a {kind!r}, which promises nothing that can be audited.")
    return audit(_read(kind, source), name=source.name, trials=trials, seed=seed)


def _mechanism(mechanism: Mechanism, name: str, trials: int, seed: int) -> Audit:
    planned = Planned(what="value", mechanism=mechanism)
    promise = Guarantee(
        releases=(planned,), mechanism=repr(mechanism), delta=mechanism.cost.delta, model="central"
    )
    attack = attack_mechanism(mechanism, trials=trials, seed=seed)
    return _judged(
        mechanism,
        name,
        "privacy",
        promise,
        [attack],
        notes=("The mechanism as it is was attacked.",),
    )


def _hasher(hasher: PrivateHasher, name: str, trials: int, seed: int) -> Audit:
    from blindsight.audit.methods.hashing import attack_codes, attack_learning

    guarantee: Guarantee = hasher.guarantee_
    attacks, notes = [], [_SAME]
    learned = getattr(hasher, "learned_from", "public")
    if not guarantee.releases:  # Algorithm 3 releases its codes as they are
        notes.append(
            "The flips inside Algorithm 3 were not attacked: they are never released; the plain "
            "codes are."
        )
    else:
        attacks.append(attack_codes(hasher, unit=guarantee.unit, trials=trials, seed=seed))
    if guarantee.model == "central" and guarantee.unit == "record":
        attacks.append(attack_learning(hasher, runs=max(100, trials // 1000), seed=seed))
        notes.append(
            "What learning releases was attacked by learning again from 100 digits, one of them "
            "replaced."
        )
    elif learned == "private":
        notes.append("Not attacked: what learning from the protected images releases.")
    else:
        notes.append(
            "Not attacked: the hash function, which rests on public images by the file's own word."
        )
    return _judged(hasher, name, "hashing", guarantee, attacks, notes=notes)


def _codebook(book: Codebook, name: str, trials: int, seed: int) -> Audit:
    from blindsight.audit.methods.hashing import attack_codes
    from blindsight.index.encoder import CellRelease

    attack = attack_codes(CellRelease(book), unit="record", trials=trials, seed=seed)
    notes = (
        _SAME,
        "Not attacked: the cells, which rest on public knowledge by the file's own word.",
    )
    return _judged(book, name, "hashing", book.guarantee(), [attack], notes=notes)


def _folder(source: Path, trials: int, seed: int) -> Audit:
    for path in sorted(source.glob("*.safetensors")):
        kind, _, _ = storage.load_any(path)
        if kind in ("hasher", "codebook"):
            result = audit(_read(kind, path), name=source.name, trials=trials, seed=seed)
            stored = source / "codes.index"
            return _stated(result, stored) if stored.exists() else result
    raise InvalidData(
        f"{source} is no index: it holds no saved hasher or codebook. Make one with blindsight "
        "protect."
    )


def attacked_index(
    source: Path, mechanism: Mechanism, guarantee: Guarantee, trials: int, seed: int
) -> tuple[Verdict, Guarantee]:
    """Return the verdict on an index with a known mechanism, and its card with the measurement."""
    result = _described(source, mechanism, guarantee, trials, seed)
    assert result.verdict is not None  # noqa: S101  (_judged makes one)
    assert isinstance(result.card, Guarantee)  # noqa: S101  (a guarantee was given)
    return result.verdict, result.card


def _index(source: Path, trials: int, seed: int) -> Audit:
    """Audit the hasher stored beside an index, or else the release that its header describes."""
    from blindsight.index.index_file import IndexHeader

    guarantee = IndexHeader.of(source).guarantee
    if guarantee is None:
        raise InvalidData(f"{source} is an index of plain codes: it promises nothing.")
    for kind in ("hasher", "codebook"):
        beside = source.parent / f"{kind}.safetensors"
        if beside.exists():
            return _stated(
                audit(_read(kind, beside), name=source.name, trials=trials, seed=seed), source
            )
    mechanism = _released(source, guarantee)
    if mechanism is None:
        notes = ("Not attacked: the index does not say how its codes were released.",)
        return _judged(None, source.name, "hashing", guarantee, [], notes=notes)
    return _described(source, mechanism, guarantee, trials, seed)


def _described(
    source: Path, mechanism: Mechanism, guarantee: Guarantee, trials: int, seed: int
) -> Audit:
    attack = attack_mechanism(mechanism, unit=guarantee.unit, trials=trials, seed=seed)
    return _judged(
        mechanism, source.name, "hashing", guarantee, [attack], notes=(_DESCRIBED,), method="index"
    )


def _stated(result: Audit, codes: Path) -> Audit:
    """Return the same attack, judged by the guarantee that the index itself states."""
    from blindsight.index.index_file import IndexHeader

    guarantee = IndexHeader.of(codes).guarantee
    if guarantee is None:
        raise InvalidData(f"{codes} is an index of plain codes: it promises nothing.")
    return _judged(
        result.subject,
        result.name,
        "hashing",
        guarantee,
        result.attacks,
        notes=result.notes,
        method="index",
    )


def _released(source: Path, guarantee: Guarantee) -> Any:
    """Return the mechanism that a header describes, or None if it describes none."""
    from blindsight.index.index_file import IndexHeader

    kinds = (BitFlip, SubsetSelection, KaryResponse)
    named = [item.mechanism for item in guarantee.releases if isinstance(item.mechanism, kinds)]
    if len(named) != 1:
        return None
    (mechanism,) = named
    needed = mechanism.n_bits if isinstance(mechanism, BitFlip) else mechanism.k
    if isinstance(mechanism, KaryResponse):
        needed = cell_bits(mechanism.k)
    if needed > IndexHeader.of(source).n_bits:
        raise HostileFile(f"{source} describes a release that does not fit its codes.")
    return mechanism


def _metric(metric: DPPMetric, name: str, trials: int, seed: int) -> Audit:
    from blindsight.audit.methods.metric import attack_metric

    attack = attack_metric(metric, runs=max(100, 3 * trials // 2000), seed=seed)
    notes = [
        "Attacked by learning again from 4 pairs of which one changes its label, with the file's "
        "own settings.",
        "Not attacked: who was compared with whom, which is public by assumption.",
    ]
    return _judged(metric, name, "metric", metric.guarantee_, [attack], notes=notes)


def _tagger(tagger: PrivateTagger, name: str, trials: int, seed: int) -> Audit:
    from blindsight.audit.methods.tagging import (
        attack_answers,
        attack_plan,
        attack_training,
    )

    if tagger.answer_guarantee_ is None:
        attacks = attack_plan(tagger.guarantee_, trials=max(1000, trials // 5), seed=seed)
        notes: tuple[str, ...] = (
            "Attacked: training again from 40 toy records, one of them there or not; and all that "
            "training releases "
            "together, at its worst.",
        )
        if attacks:
            attacks.append(attack_training(tagger, runs=max(100, trials // 1000), seed=seed))
        else:
            notes = ("Not attacked: training has no noise, or looks at no record.",)
        return _judged(tagger, name, "tagging", tagger.guarantee_, attacks, notes=notes)
    attacks = attack_answers(tagger, trials=trials, seed=seed)
    notes = (
        "One answer about one image was attacked: logits at opposite ends, and beyond the clipping "
        "bound.",
        "Not attacked: training; its own promise is the second card.",
    )
    result = _judged(tagger, name, "tagging", tagger.answer_guarantee_, attacks, notes=notes)
    return replace(result, others=(("Training records", tagger.guarantee_),))


def _statistics(sender: Any, name: str, trials: int, seed: int) -> Audit:
    from blindsight.audit.methods.sketching import attack_sender
    from blindsight.audit.methods.tagging import attack_plan

    guarantee: Guarantee = sender.guarantee_
    attacks = attack_plan(guarantee, trials=max(1000, trials // 5), seed=seed)
    attacks.append(attack_sender(sender, runs=max(100, trials // 1000), seed=seed))
    notes = (
        "Attacked: the same release again from 40 toy images, one of them there or not; and all "
        "that is released, at its worst.",
        "Not attacked: the number of images and the names of the classes, which are public.",
    )
    return _judged(sender, name, "sketching", guarantee, attacks, notes=notes)


def _printed_tagger(model: P2MLGCN, name: str, trials: int, seed: int) -> Audit:
    from blindsight.audit.methods.tagging import attack_printed

    attacks = [attack_printed(model.release_, trials=trials, seed=seed)]
    notes = ("One answer about one image was attacked: logits at opposite ends.",)
    result = _judged(model, name, "tagging", model.guarantee_, attacks, notes=notes)
    return replace(result, others=(("Training records", model.training_guarantee_),))


def _flips(flipper: FlippedBits, name: str, trials: int, seed: int) -> Audit:
    from blindsight.audit.methods.sketching import attack_pixel

    attack = attack_pixel(flipper.parameters_, trials=trials, seed=seed)
    return _judged(
        flipper,
        name,
        "sketching",
        flipper.guarantee_,
        [attack],
        notes=("One pixel, 0 or all ones.",),
    )


def _codebook_sketches(sketcher: CodebookSketcher, name: str, trials: int, seed: int) -> Audit:
    from blindsight.audit.methods.sketching import attack_prototypes

    attack = attack_prototypes(sketcher, trials=trials, seed=seed)
    return _judged(sketcher, name, "sketching", sketcher.guarantee_, [attack], notes=(_SAME,))


def _federated(model: Any, name: str, trials: int, seed: int) -> Audit:
    from blindsight.audit.methods.federated import attack_sum

    notes = [
        "Not attacked here: the encrypted messages; blindsight audit --all attacks the protocol."
    ]
    if model.noise is None:
        notes.insert(
            0, "Not attacked: the sums carry no noise, and whoever opens one sees it as it is."
        )
        return _judged(model, name, "federated", model.guarantee_, [], notes=notes)
    notes.insert(
        0, "Attacked: sums that six users make with noise of their own, by the model's settings."
    )
    attack = attack_sum(model, trials=max(1000, trials // 50), seed=seed)
    return _judged(model, name, "federated", model.guarantee_, [attack], notes=notes)


def _sketches(subject: Any, name: str, trials: int, seed: int) -> Audit:
    """Audit sketches.

    Flipped bits claim an epsilon. Other sketches claim none: the epsilon that they imply is
    computed, and measured on one pixel.
    """
    from blindsight.audit.methods.sketching import attack_pixel, sketch_card
    from blindsight.sketching import FlipParameters
    from blindsight.sketching.guarantee import flips_guarantee

    parameters = subject.parameters if hasattr(subject, "parameters") else subject.parameters_
    shape = subject.image_shape if hasattr(subject, "image_shape") else subject.image_shape_
    attack = attack_pixel(parameters, trials=min(trials, 200_000), seed=seed)
    notes = ("Attacked: the counts of one pixel, 0 or all ones, and the pictures below.",)
    if isinstance(parameters, FlipParameters):
        promise = flips_guarantee(parameters, shape)
        return _judged(
            subject, name, "sketching", promise, [attack], notes=notes, method="flipped bits"
        )
    card, implied = sketch_card(parameters, shape)
    verdict = Verdict(
        room="sketching",
        method="sketch",
        setting=f"{parameters.name}, computed, δ = {attack.delta:g}",
        unit="pixel",
        calibration="paper",
        claimed=None,
        proven=implied,
        audited=attack.audited,
    )
    return Audit(
        name=name,
        room="sketching",
        subject=subject,
        card=card,
        verdict=verdict,
        attacks=(attack,),
        notes=notes,
    )


def _judged(
    subject: object,
    name: str,
    room: Room,
    guarantee: Guarantee,
    attacks: Sequence[Attack],
    *,
    notes: Sequence[str],
    method: str | None = None,
) -> Audit:
    ranked = tuple(sorted(attacks, key=lambda attack: -attack.audited.epsilon))
    best = ranked[0].audited if ranked else None
    setting = guarantee.mechanism if room != "privacy" else "worst inputs"
    verdict = Verdict.of(
        guarantee, best, room=room, method=method or type(subject).__name__, setting=setting
    )
    card = guarantee if best is None else guarantee.with_audit(best)
    return Audit(
        name=name,
        room=room,
        subject=subject,
        card=card,
        verdict=verdict,
        attacks=ranked,
        notes=tuple(notes),
    )


def _named(*names: str) -> Callable[[Any], bool]:
    return lambda subject: bool({base.__name__ for base in type(subject).__mro__} & set(names))


_HANDLERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, str, int, int], Audit]], ...] = (
    (_named("PHashing", "CodebookHasher", "PITQ", "PrivUnitHasher"), _hasher),
    (_named("LinearMetric"), _metric),
    (_named("PrivateTagger"), _tagger),
    (_named("P2MLGCN"), _printed_tagger),
    (_named("FeatureStatistics", "PrivateHead"), _statistics),
    (_named("FlippedBits"), _flips),
    (_named("CodebookSketcher"), _codebook_sketches),
    (_named("FederatedClassifier"), _federated),
)


# The module and the name that read a file of each kind; only the module that is needed is imported.
_READERS = {
    "hasher": ("blindsight.hashing", "load"),
    "codebook": ("blindsight.codebooks", "Codebook.load"),
    "metric": ("blindsight.metric", "DPPMetric.load"),
    "private tagger": ("blindsight.tagging", "PrivateTagger.load"),
    "p2-ml-gcn": ("blindsight.tagging", "P2MLGCN.load"),
    "rp2-ml-gcn": ("blindsight.tagging", "RP2MLGCN.load"),
    "sketches": ("blindsight.sketching.sketches", "SketchSet.open"),
    "feature statistics": ("blindsight.sketching", "FeatureStatistics.load"),
    "private head": ("blindsight.sketching", "PrivateHead.load"),
    "flipped-bits": ("blindsight.sketching", "FlippedBits.load"),
    "negative-sketcher": ("blindsight.sketching", "NegativeSketcher.load"),
    "federated classifier": ("blindsight.federated", "FederatedClassifier.load"),
}


def _read(kind: str, path: Path) -> Any:
    module, name = _READERS[kind]
    return attrgetter(name)(importlib.import_module(module))(path)

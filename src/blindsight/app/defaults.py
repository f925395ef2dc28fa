"""Defaults that the command line and the workbench share, and which vault and ledger a job uses.

The defaults of codes (method, epsilon, unit, number of cells) are in
`blindsight.index.encoder.CodeRecipe` and `blindsight.codebooks.number_of_cells`. The command line
imports this module to print its help, so it imports no large module at the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from blindsight.core.errors import InvalidParameter

if TYPE_CHECKING:
    from blindsight.index.encoder import CodeRecipe
    from blindsight.privacy.ledger import Ledger
    from blindsight.privacy.vault import Vault

__all__ = [
    "ATTACKED_SKETCHES",
    "ATTACKER_STEPS",
    "AUDIT_TRIALS",
    "AUDIT_TRIALS_DEEP",
    "AUDIT_TRIALS_QUICK",
    "BUNDLED_PICTURES",
    "CHECKED_PHOTOS",
    "DELTA",
    "EPSILONS_OFFERED",
    "EPSILON_CHOSEN_FIRST",
    "LARGE_EPSILON",
    "LEDGER_ENTRIES_SHOWN",
    "MAX_IMAGES_PER_PERSON",
    "MEASURED_PHOTOS",
    "METRIC_EPSILON",
    "METRIC_NEIGHBOURS",
    "METRIC_UNIT",
    "MILVUS_COLLECTION",
    "NETWORKS_OFFERED",
    "PLAIN_DISTANCE",
    "SEARCH_HITS",
    "SEND_ENCODER",
    "SEND_EPSILON",
    "SEND_IMAGES_PER_PERSON",
    "SKETCH_EPOCHS",
    "SKETCH_P",
    "SKETCH_Q",
    "SKETCH_R",
    "TAGGER_EPSILON",
    "ask_for_people",
    "code_recipe",
    "code_size",
    "default_encoder",
    "federated_encoder",
    "no_progress",
    "open_ledger",
    "open_vault",
    "own_names",
    "public_name",
]

#: Networks that the workbench offers for reading photos, each with a short description.
NETWORKS_OFFERED = {
    "lite2": "the default; finds more",
    "lite0": "four times as fast; finds less",
}
#: Epsilons per photo that the workbench offers for a release.
EPSILONS_OFFERED = (2.0, 4.0, 8.0, 16.0)
#: The epsilon that is preselected, and at which the groups in use are counted.
EPSILON_CHOSEN_FIRST = 8.0
#: A release with a larger epsilon must be confirmed explicitly.
LARGE_EPSILON = 32.0
#: Images of one person that are released if people are protected and no number is given.
MAX_IMAGES_PER_PERSON = 1
#: Photos that are measured before a release is charged, if the owner asks for it.
CHECKED_PHOTOS = 400
#: Public photos for previews if no other public photos are on this machine.
BUNDLED_PICTURES = "album"
#: The largest number of photos of a release that are measured; a random sample of more.
MEASURED_PHOTOS = 2000
#: Hits per query.
SEARCH_HITS = 12
#: Name of the Milvus collection that holds an index.
MILVUS_COLLECTION = "blindsight"
#: Trials of each attack in an audit: by default, with `deep=True`, and on a page that waits.
AUDIT_TRIALS, AUDIT_TRIALS_DEEP, AUDIT_TRIALS_QUICK = 200_000, 2_000_000, 60_000
#: Ledger entries that are listed per data set by default.
LEDGER_ENTRIES_SHOWN = 20
#: The delta of every (epsilon, delta) guarantee: well below one over the number of records.
DELTA = 1e-5
#: Privacy budget per unit of what is learned from pairs.
METRIC_EPSILON = 1.0
#: The unit of protection of pairs: the label of one pair, which is replaced by the other label.
METRIC_UNIT = "label"
#: Neighbours that vote in a test, and records that are listed as nearest.
METRIC_NEIGHBOURS = 5
#: In place of a model: the Euclidean distance of features, which needs no pairs and no budget.
PLAIN_DISTANCE = "plain"
#: Privacy budget of statistics per image and label, or per person.
SEND_EPSILON = 1.0
#: The encoder of photos for statistics; "gradients" is for grey drawings and handwriting.
SEND_ENCODER = "lite0-224"
#: Images per person if people are protected; the noise of statistics grows with its square root.
SEND_IMAGES_PER_PERSON = 5
#: Default settings of sketches, which are some of the paper's.
SKETCH_Q, SKETCH_P, SKETCH_R = "Q3", (0.7, 0.24, 0.06), 6.5
#: Passes over the sketches in training.
SKETCH_EPOCHS = 5
#: Number of sketches that are attacked by default.
ATTACKED_SKETCHES = 100
#: Training steps of the attacker that learns from public images, which bound its time.
ATTACKER_STEPS = 120
#: Total privacy budget of training a tagger, per training photo (add or remove one).
TAGGER_EPSILON = 2.0
#: The largest size in bytes of a file of names.
MAX_NAMES_BYTES = 1 << 20


def no_progress(stage: str, done: int, total: int) -> None:
    """Report nothing: the default `progress` of every function in `blindsight.app`."""


def default_encoder(*, fast: bool = False) -> str:
    """Return the name of the default encoder.

    Parameters:
        fast: use the small network, which is about four times as fast.
    """
    from blindsight.index.encoder import default_features

    return default_features(fast=fast)


def federated_encoder(method: str | None) -> str:
    """Return the name of the default encoder for federated training.

    Parameters:
        method: "statistics", "gradients" or "updates".
    """
    return "lite0-224" if method == "statistics" else "lite0"


def code_recipe(**options: object) -> CodeRecipe:
    """Complete the options of a release of codes with the defaults.

    Parameters:
        options: fields of `blindsight.index.encoder.CodeRecipe`; those that are missing or None
            take their defaults, and the number of bits follows from method, unit and epsilon.

    Raises:
        InvalidParameter: if a value is out of range or two of them exclude each other.

    Examples:
        >>> code_recipe(epsilon=4.0, features="pixels").method
        'codebook'
        >>> code_recipe(method="phashing-itq", epsilon=8.0, features="pixels").bits
        4
    """
    from blindsight.index import encoder

    stated = {name: value for name, value in options.items() if value is not None}
    if "features" not in stated:
        stated["features"] = default_encoder()
    recipe_type = encoder.CodeRecipe
    stated.setdefault(
        "bits",
        encoder.default_bits(
            str(stated.get("method", recipe_type.method)),
            str(stated.get("unit", recipe_type.unit)),
            float(stated.get("epsilon", recipe_type.epsilon)),  # type: ignore[arg-type]
        ),
    )
    return recipe_type(**stated)  # type: ignore[arg-type]


def code_size(method: object, cells: int | None, bits: int | None) -> int | None:
    """Return the cells of a codebook or the bits of a phashing code, whichever the method has."""
    if method in (None, "codebook"):
        if bits is not None:
            raise InvalidParameter(
                "a codebook has cells, not bits: use --cells, or choose a phashing --method."
            )
        if cells is not None and cells < 2:
            raise InvalidParameter(
                f"--cells must be at least 2, got {cells}: with one cell search finds nothing."
            )
        return cells
    if cells is not None:
        raise InvalidParameter(f"{method} has bits, not cells: use --bits.")
    return bits


def own_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names from a list, from a text with commas, or from a file with one name per line."""
    if not isinstance(names, str):
        return tuple(names)
    from blindsight.data.limits import read_bytes

    path = Path(names)
    if len(names) < 4096 and path.is_file():
        text = read_bytes(path, largest=MAX_NAMES_BYTES).decode("utf-8", "replace")
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    return tuple(name.strip() for name in names.split(",") if name.strip())


def ask_for_people(names: Sequence[str]) -> None:
    """Refuse DICOM files unless their people are named, because a patient often has several."""
    from blindsight.data.reading import DICOM_SUFFIXES

    scans = sum(Path(name).suffix.lower() in DICOM_SUFFIXES for name in names)
    if scans:
        raise InvalidParameter(
            f"{scans:,} DICOM files name their patients, and a patient often has several of "
            "them. Say whose they are with --people dicom (at most --most images of one patient "
            "are released), or --people none to protect each image by itself. Nothing was "
            "released."
        )


def refuse_persons(unit: str | None, max_per_person: int | None) -> None:
    """Refuse a bound per person if it is not known whose the photos are."""
    if max_per_person is not None:
        raise InvalidParameter(
            "--most is a number of images of one person: say whose they are, with --people."
        )
    if unit == "person":
        raise InvalidParameter(
            "unit must be 'record' or 'bit': a bound per person is added if people= (--people) "
            "says whose the photos are."
        )


def public_name(
    public: str | PathLike[str] | None, vectors: str | PathLike[str] | None
) -> str | None:
    """Return the absolute path of public pictures or vectors, or the name of a known data set."""
    from blindsight.index.public_images import is_vector_file

    if vectors is not None:
        if not isinstance(vectors, (str, PathLike)):
            raise InvalidParameter(
                f"public_embeddings must be a file of vectors, got {type(vectors).__name__}: "
                "cells are computed from it again when photos are added. Save it first: "
                'numpy.save("public.npy", vectors).'
            )
        if public is not None or not is_vector_file(str(vectors)) or not Path(vectors).is_file():
            raise InvalidParameter(
                "--public-embeddings is a file of vectors (.npy, .npz, .parquet), in place of "
                f"--public; got {vectors}."
            )
        return str(Path(vectors).resolve())
    if public is None:
        return None
    return str(Path(public).resolve()) if Path(public).is_dir() else str(public)


def open_vault(path: str | Path | None, model: Path) -> Vault:
    """Open the vault at `path`, by default the one beside the model; create it if needed."""
    from blindsight.index.release_folder import vault_beside
    from blindsight.privacy.vault import Vault

    return Vault.open_or_create(path or vault_beside(model))


def open_ledger(
    where: str | PathLike[str] | Ledger | None,
    dataset: str,
    vault: Vault | None,
    *,
    actor: str | None = None,
    purpose: str = "",
) -> Ledger | None:
    """Open the account of a data set that a job charges.

    Parameters:
        where: the ledger's file or postgresql:// address. None opens the ledger that earlier
            releases of the vault were charged to, if there is one. An open ledger is returned
            unchanged.
        dataset: the name of the account.
        vault: the vault of the releases.
        actor: the name of the person who asks for them (default: the operating system's user).
        purpose: what the releases are for.

    Returns:
        The ledger, which stores actor and purpose with every charge; None if there is none.

    Raises:
        InvalidParameter: if the ledger that earlier releases were charged to is missing.
    """
    from blindsight.privacy.ledger import Ledger

    if isinstance(where, Ledger):
        return where
    noted = None if vault is None else vault.fact("ledger")
    if where is None and vault is not None and noted is not None:
        if "://" not in str(noted) and not Path(noted).is_file():
            raise InvalidParameter(
                f"earlier releases of this vault were charged to the ledger {noted}, which does "
                "not exist. Give its present path with --ledger."
            )
        where, dataset = noted, vault.fact("dataset") or dataset
    if where is None:
        return None
    return Ledger(str(where), dataset=dataset, actor=actor, purpose=purpose)

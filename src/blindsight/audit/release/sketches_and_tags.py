"""Attacks on sent sketches and published tags, checked against the owner's photos.

They measure what attackers recover from a sketch, and what they guess from a tag.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np

from blindsight.audit.engine.blackbox import attack_mechanism
from blindsight.audit.release.album import Kinds, owner_kinds
from blindsight.audit.release.attacks import by_count, half, ranks
from blindsight.audit.report.file_report import changes
from blindsight.audit.report.page import Figure, Report, gallery
from blindsight.audit.report.verdict import Verdict
from blindsight.audit.target import audit
from blindsight.core.arrays import Array, Bools, Bytes, Floats, Ints
from blindsight.core.errors import InvalidData
from blindsight.core.storage import open_json
from blindsight.data.limits import LIMITS, read_bytes
from blindsight.data.listing import list_photos, load_class_folders, load_folder
from blindsight.data.sources import content_digest
from blindsight.privacy import Guarantee
from blindsight.privacy.guarantee import FORMAT
from blindsight.privacy.vault import Vault
from blindsight.sketching.attackers import Suite, measure, measured_verdict
from blindsight.sketching.sketches import SketchSet

__all__ = ["audit_sketches", "audit_tags", "read_guarantee"]

_SHOWN, _STEPS = 8, 120
_VALUES = 3_000_000  # pixels times channels that are attacked


def audit_sketches(
    path: str | Path,
    photos: str | Path,
    *,
    most: int = 200,
    steps: int | None = None,
    seed: int = 0,
    trials: int = 200_000,
) -> Report:
    """Reconstruct the owner's photos from their sketches by every attacker.

    One of the attackers knows half of the photos.

    Parameters:
        path: the file that was sent.
        photos: the folder it was made from, unchanged since.
        most: the largest number of photos that are measured, drawn at random.
        steps: training steps of the attacker that knows half of the photos.
        seed: of all random choices.
        trials: runs of the attack on the mechanism.

    Returns:
        The report.
    """
    held, rng = SketchSet.open(path), np.random.default_rng(seed)
    most = min(most, max(16, _VALUES // math.prod(held.image_shape)))
    places, images = _photos(Path(photos), held, most, rng)
    known = half(len(places), rng)
    suite = Suite(held.parameters, public=images[known], steps=steps or _STEPS, random_state=seed)
    guesses = suite.recover(held[places[~known]])
    targets, depth = images[~known], held.parameters.depth
    results = sorted(
        (measure(name, targets, guess, depth=depth) for name, guess in guesses.items()),
        key=lambda r: -r.psnr,
    )
    mean = np.broadcast_to(images[known].mean(axis=0), targets.shape)
    alone = measure("the mean photo", targets, mean, depth=depth)
    _, first = ranks(-_apart(targets, guesses[results[0].attack]), np.arange(len(targets)))
    top = float(first.mean())
    judged = audit(held, name=Path(path).name, trials=trials, seed=seed)
    rows = [
        {
            "from": r.attack,
            "PSNR in dB": f"{r.psnr:.1f}",
            "SSIM": "" if r.ssim is None else f"{r.ssim:.2f}",
        }
        for r in (*results, alone)
    ]
    scale = 255 / (2.0**depth - 1)
    pictures: dict[str, Array] = {"your photos": targets[:_SHOWN] * scale}
    pictures |= {
        f"{r.attack}: {r.psnr:.1f} dB": guesses[r.attack][:_SHOWN] * scale for r in results
    }
    pictures[f"from nothing, the mean photo: {alone.psnr:.1f} dB"] = mean[:_SHOWN] * scale
    return Report(
        title=f"Attack on {Path(path).name}",
        verdicts=[] if judged.verdict is None else [judged.verdict],
        cards=[(judged.name, judged.card)],
        figures=[
            Figure(
                "What can be reconstructed of your photos",
                f"{len(targets):,} of your photos as every attacker reconstructs them from what "
                f"you sent; the network was trained on {int(known.sum()):,} others of them. A "
                "picture that is no better than the mean photo reveals nothing about its photo.",
                gallery(pictures, scale=max(1, 64 // targets.shape[2])),
                rows,
            )
        ],
        notes=["Measured on this computer; nothing left it. The page shows photos, so keep it."],
        changes=[*_sketch_advice(results[0].psnr, alone.psnr, top, len(targets)), *changes(judged)],
        summary=f"{measured_verdict(results, held.image_shape, missing=suite.missing)} Somebody "
        f"who has a copy of a photo finds its sketch in {100 * top:.0f} of 100 cases "
        f"({100 / len(targets):.1f} by chance).",
    )


def _photos(
    folder: Path, held: SketchSet, most: int, rng: np.random.Generator
) -> tuple[Ints, Bytes]:
    """Return positions of sketches, and their photos as they were sketched."""
    if not folder.is_dir():
        raise InvalidData(
            f"{folder} is not a folder. Give the photos that were sketched: --photos."
        )
    classes = any(entry.is_dir() and not entry.name.startswith(".") for entry in folder.iterdir())
    images = load_class_folders(folder) if classes else load_folder(folder)
    if len(images) != len(held):
        raise InvalidData(
            f"{folder} holds {len(images):,} photos, the file {len(held):,} sketches: not its "
            "photos."
        )
    places = np.sort(rng.permutation(len(held))[:most])
    if len(places) < 8:
        raise InvalidData(f"an audit needs 8 sketches, here are {len(places)}.")
    channels, height, width = held.image_shape
    chosen = images.take(places)
    array = chosen.array(height) if height == width else chosen.array()
    if channels == 1 and array.ndim == 4:
        array = np.rint(array @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)
    if array.shape[1:3] != (height, width):
        raise InvalidData(f"the photos are of another size than the sketches ({width} x {height}).")
    return places, np.asarray(array >> (8 - min(8, held.parameters.depth)), np.uint8)


def _apart(photos: Array, guesses: Array) -> Floats:
    """Return squared distances of photos (rows) and reconstructions (columns)."""
    a, b = (np.asarray(images, np.float64).reshape(len(images), -1) for images in (photos, guesses))
    return np.asarray((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T)


def _sketch_advice(psnr: float, alone: float, top: float, n: int) -> list[str]:
    sentences = []
    if psnr > alone + 1:
        sentences.append(
            f"look at the pictures: they are reconstructed at {psnr:.1f} dB, the mean photo has "
            f"{alone:.1f}. Sketch with a "
            "larger q (--max-psnr sets the goal), or smaller images"
        )
    if top > 10 / n:
        sentences.append(
            "send sketches only to people who may know which photos are among them: a copy of a "
            "photo finds its sketch"
        )
    return sentences


def audit_tags(
    table: str | Path,
    vault: str | Path,
    photos: str | Path,
    *,
    labels: str | None = None,
    seed: int = 0,
    trials: int = 200_000,
) -> Report:
    """Measure how often a published tag reveals what a photo shows, or which row is its row.

    Parameters:
        table: the CSV file that was shared: a photo's id (or name), and its tags, separated by
            ";".
        vault: the vault of the release.
        photos: the photos' folder.
        labels: what the photos show: "folder", or FILE.csv:COLUMN with the photos' names in the
            first column.
        seed: of all random choices.
        trials: runs of the attack on the mechanism.

    Returns:
        The report.
    """
    source, rng = Path(table), np.random.default_rng(seed)
    published = _published(source)
    names = _names(Vault(vault), Path(photos), published)
    listed = sorted(names)
    if len(listed) < 20:
        raise InvalidData(
            f"only {len(listed)} photos of {source} were found in {photos}; an audit needs 20."
        )
    kinds = owner_kinds([names[key] for key in listed], labels)
    if kinds is None:
        raise InvalidData("say what the photos show: --labels folder, or --labels FILE.csv:COLUMN.")
    texts, tags = np.unique([published[key] for key in listed], return_inverse=True)
    known = half(len(listed), rng)
    guess = by_count(tags[known], kinds.shows[known], tags[~known], kinds.shows[~known])
    luck = float(np.bincount(kinds.shows).max() / len(tags))
    top, rank = _found(tags, kinds, len(texts), known)
    plain_top, plain_rank = _found(kinds.shows, kinds, len(kinds.names), known)
    named = sum(names[key] == key for key in listed)
    broken = [f"the names of {named} photos stand in the release"] if named else []
    guarantee, verdicts = _judged(source, trials, seed)
    guess, n = max(guess, luck), len(listed)
    return Report(
        title=f"Attack on {source.name}",
        verdicts=verdicts,
        cards=[] if guarantee is None else [(source.name, guarantee)],
        figures=[
            Figure(
                "What an attacker finds out",
                "From the tags you shared; from tags that always say what a photo shows; and by "
                "chance.",
                "",
                [
                    _row("what a photo shows guessed", f"{guess:.0%}", "100%", f"{luck:.0%}"),
                    _row(
                        "row found by a copy, first try",
                        f"{top:.1%}",
                        f"{plain_top:.1%}",
                        f"{1 / n:.1%}",
                    ),
                    _row(
                        "rank of its row", f"{rank:.0f}", f"{plain_rank:.0f}", f"{(n + 1) / 2:.0f}"
                    ),
                ],
            )
        ],
        notes=[
            f"Measured on {n:,} of {len(published):,} published photos, on this computer; nothing "
            "left it.",
            f"What a photo shows: {len(kinds.names)} kinds, by {kinds.source}. The attacker knows "
            "it for half of the photos.",
        ],
        changes=_tag_advice(guess, luck, broken),
        summary=f"From its published tag, what a photo shows is guessed in {100 * guess:.0f} of "
        "100 cases "
        f"({100 * luck:.0f} by chance). Somebody who has a copy of a photo finds its row in "
        f"{100 * top:.1f} of 100 cases "
        f"({100 / n:.1f} by chance).",
        broken=broken,
    )


def _published(source: Path) -> dict[str, str]:
    """Return the tags of each photo, from the first two columns."""
    try:
        rows = list(csv.reader(read_bytes(source, largest=LIMITS.file_bytes).decode().splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidData(
            f"{source} cannot be read as a table ({type(error).__name__})."
        ) from error
    tags = {row[0]: row[1] for row in rows[1:] if len(row) >= 2}
    if not tags:
        raise InvalidData(f"{source} holds no published tags: a photo's id, and its tags.")
    return tags


def _names(vault: Vault, folder: Path, published: dict[str, str]) -> dict[str, str]:
    """Return the file of each published photo, by the vault's id of its content or by its name."""
    names: dict[str, str] = {}
    for name in list_photos(folder, leave_out=[vault.path]).photos:
        record = vault.record_of(
            content_digest(read_bytes(folder / name, largest=LIMITS.image_bytes), name=name)
        )
        for key in {record, name} & published.keys():
            names.setdefault(key, name)
    return names


def _found(tags: Ints, kinds: Kinds, count: int, known: Bools) -> tuple[float, float]:
    """Return how well an attacker with a copy of a photo finds its row.

    It knows what the copy shows, and ranks rows by how often such photos have the row's tag among
    the known photos.
    """
    table = np.zeros((len(kinds.names), count))
    np.add.at(table, (kinds.shows[known], tags[known]), 1.0)
    queries = np.flatnonzero(~known)
    rank, first = ranks(table[kinds.shows[queries]][:, tags], queries)
    return float(first.mean()), float(rank.mean())


def read_guarantee(path: Path) -> Guarantee:
    """Read the guarantee stored beside published tags and check its digest.

    Raises:
        HostileFile: if the file is damaged or was changed.
        InvalidData: if it does not hold a guarantee.
    """
    fields = open_json(path.read_bytes(), path, earlier={"format": FORMAT})
    return Guarantee.from_json(json.dumps(fields))


def _judged(source: Path, trials: int, seed: int) -> tuple[Guarantee | None, list[Verdict]]:
    """Return the guarantee stored beside the table, if there is one, and the attack on it."""
    beside = source.with_name("guarantee.json")
    if not beside.is_file():
        return None, []
    guarantee = read_guarantee(beside)
    if len(guarantee.releases) != 1:
        return guarantee, []
    audited = attack_mechanism(
        guarantee.releases[0].mechanism, unit=guarantee.unit, trials=trials, seed=seed
    ).audited
    verdict = Verdict.of(
        guarantee, audited, room="tagging", method="published tags", setting=guarantee.mechanism
    )
    return guarantee.with_audit(audited), [verdict]


def _row(question: str, released: str, plain: str, chance: str) -> dict[str, str]:
    return {"question": question, "shared": released, "no noise": plain, "chance": chance}


def _tag_advice(guess: float, luck: float, broken: list[str]) -> list[str]:
    sentences = [
        f"do not share this, and withdraw what you can: {problem} (tag apply --ids)"
        for problem in broken
    ]
    if guess - luck > 0.8 * (1 - luck):
        sentences.append(
            "publish with a smaller epsilon: what a photo shows is guessed nearly as well as from "
            "tags without noise"
        )
    return sentences

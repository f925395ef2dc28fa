"""Attack published tags, with the photos and what they show as the truth: what does a stranger
guess from a tag?
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from blindsight.audit.engine.worst_inputs import attack_mechanism
from blindsight.audit.release.attacks import by_count, half, ranks
from blindsight.audit.release.kinds import Kinds, told_kinds
from blindsight.audit.report.figures import Figure
from blindsight.audit.report.page import Report
from blindsight.audit.report.verdict import Verdict
from blindsight.core.arrays import Bools, Ints
from blindsight.core.errors import InvalidData
from blindsight.core.storage import open_json
from blindsight.data.limits import LIMITS, read_bytes
from blindsight.data.listing import list_photos
from blindsight.data.sources import content_digest
from blindsight.privacy import Guarantee
from blindsight.privacy.guarantee import FORMAT
from blindsight.privacy.vault import Vault

__all__ = ["audit_tags", "read_guarantee"]


def audit_tags(
    table: str | Path,
    vault: str | Path,
    photos: str | Path,
    *,
    labels: str | None = None,
    seed: int = 0,
    trials: int = 200_000,
) -> Report:
    """How often a stranger guesses what a photo shows from its published tag, and finds the photo's
    row by a copy.

    Parameters:
        table: the CSV file that was given away: a photo's id (or name), and its tags with ";"
            between.
        vault: what was kept of the release.
        photos: the photos' folder.
        labels: what the photos show: "folder", or FILE.csv:COLUMN with the photos' names in the
            first column.
    """
    source, rng = Path(table), np.random.default_rng(seed)
    published = _published(source)
    names = _names(Vault(vault), Path(photos), published)
    listed = sorted(names)
    if len(listed) < 20:
        raise InvalidData(
            f"only {len(listed)} photos of {source} were found in {photos}; an audit needs 20."
        )
    kinds = told_kinds([names[key] for key in listed], labels)
    if kinds is None:
        raise InvalidData("say what the photos show: --labels folder, or --labels FILE.csv:COLUMN.")
    texts, tags = np.unique([published[key] for key in listed], return_inverse=True)
    known = half(len(listed), rng)
    guess = by_count(tags[known], kinds.shows[known], tags[~known], kinds.shows[~known])
    luck = float(np.bincount(kinds.shows).max() / len(tags))
    top, rank = _found(tags, kinds, len(texts), known)
    plain_top, plain_rank = _found(kinds.shows, kinds, len(kinds.names), known)
    told = sum(names[key] == key for key in listed)
    broken = [f"the names of {told} photos stand in the release"] if told else []
    guarantee, verdicts = _judged(source, trials, seed)
    guess, n = max(guess, luck), len(listed)
    return Report(
        title=f"Attack on {source.name}",
        verdicts=verdicts,
        cards=[] if guarantee is None else [(source.name, guarantee)],
        figures=[
            Figure(
                "What a stranger finds out",
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
            f"What a photo shows: {len(kinds.names)} kinds, by {kinds.source}. The stranger knows "
            "it of half of them.",
        ],
        changes=_advice(guess, luck, broken),
        summary=f"From its published tag, what a photo shows is guessed in {100 * guess:.0f} of "
        "100 cases "
        f"({100 * luck:.0f} by luck). Somebody who has a copy of a photo finds its row in "
        f"{100 * top:.1f} of 100 cases "
        f"({100 / n:.1f} by luck).",
        broken=broken,
    )


def _published(source: Path) -> dict[str, str]:
    """Photo to tags, as the first two columns have them."""
    try:
        rows = list(csv.reader(read_bytes(source, largest=LIMITS.file_bytes).decode().splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidData(
            f"{source} cannot be read as a table ({type(error).__name__})."
        ) from error
    found = {row[0]: row[1] for row in rows[1:] if len(row) >= 2}
    if not found:
        raise InvalidData(f"{source} holds no published tags: a photo's id, and its tags.")
    return found


def _names(vault: Vault, folder: Path, published: dict[str, str]) -> dict[str, str]:
    """The file of each published photo: by its content, for ids are the vault's; or by the name
    that stands there.
    """
    found: dict[str, str] = {}
    for name in list_photos(folder, leave_out=[vault.path]).photos:
        record = vault.record_of(
            content_digest(read_bytes(folder / name, largest=LIMITS.image_bytes), name=name)
        )
        for key in {record, name} & published.keys():
            found.setdefault(key, name)
    return found


def _found(tags: Ints, kinds: Kinds, count: int, known: Bools) -> tuple[float, float]:
    """One who holds a copy knows what it shows, and ranks rows by how often that has such a tag
    among known photos.
    """
    table = np.zeros((len(kinds.names), count))
    np.add.at(table, (kinds.shows[known], tags[known]), 1.0)
    asked = np.flatnonzero(~known)
    rank, first = ranks(table[kinds.shows[asked]][:, tags], asked)
    return float(first.mean()), float(rank.mean())


def read_guarantee(path: Path) -> Guarantee:
    """The promise that lies beside published tags, checked against its digest.

    Raises:
        HostileFile: if the file is damaged or was changed.
        InvalidData: if it does not hold a guarantee.
    """
    fields = open_json(path.read_bytes(), path, earlier={"format": FORMAT})
    return Guarantee.from_json(json.dumps(fields))


def _judged(source: Path, trials: int, seed: int) -> tuple[Guarantee | None, list[Verdict]]:
    """The promise that lies beside the table, where there is one, and the attack on it."""
    beside = source.with_name("guarantee.json")
    if not beside.is_file():
        return None, []
    guarantee = read_guarantee(beside)
    if len(guarantee.releases) != 1:
        return guarantee, []
    found = attack_mechanism(
        guarantee.releases[0].mechanism, unit=guarantee.unit, trials=trials, seed=seed
    ).audited
    verdict = Verdict.of(
        guarantee, found, room="tagging", method="published tags", setting=guarantee.mechanism
    )
    return guarantee.with_audit(found), [verdict]


def _row(question: str, released: str, plain: str, chance: str) -> dict[str, str]:
    return {"question": question, "shared": released, "no noise": plain, "chance": chance}


def _advice(guess: float, luck: float, broken: list[str]) -> list[str]:
    found = [
        f"do not give this away, and take back what you can: {problem} (tag apply --ids)"
        for problem in broken
    ]
    if guess - luck > 0.8 * (1 - luck):
        found.append(
            "publish with a smaller epsilon: what a photo shows is guessed nearly as well as from "
            "tags without noise"
        )
    return found

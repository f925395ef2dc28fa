"""Attack a release, a saved model or the methods themselves, and compare with the guarantee."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from blindsight.app import defaults
from blindsight.app.defaults import no_progress
from blindsight.app.result import JobResult, Progress, framed
from blindsight.core.errors import InvalidParameter
from blindsight.encoders import Encoder

if TYPE_CHECKING:
    from blindsight.audit.release import ReleaseAudit
    from blindsight.audit.report.page import Figure
    from blindsight.audit.report.verdict import Verdict

__all__ = [
    "AuditReport",
    "AuditResult",
    "attack_release",
    "audit_methods",
    "audit_release",
    "draw_numbers",
    "method_verdicts",
    "report_figure",
]

PathText = str | PathLike[str]


class AuditReport(Protocol):
    """The interface of all reports of `blindsight.audit`."""

    @property
    def refuted(self) -> bool: ...

    def to_text(self, width: int = 80) -> str: ...

    def to_html(self) -> str: ...

    def to_json(self) -> str: ...

    def write(self, folder: str | Path) -> list[Path]: ...


@dataclass(frozen=True)
class AuditResult(JobResult):
    """What an audit measured.

    Parameters:
        target: what was audited.
        report: the report, with its figures.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from blindsight import LSH, PHashing
        >>> X = np.random.default_rng(0).normal(size=(100, 4))
        >>> model = f"{tempfile.mkdtemp()}/model"
        >>> paper = PHashing(LSH(24), epsilon=1, calibration="paper", learned_from="public")
        >>> paper.fit(X).save(model)
        >>> audit_release(model).refuted
        True
    """

    target: str
    report: AuditReport

    @property
    def refuted(self) -> bool:
        """Whether an attack or the files contradict the guarantee."""
        return self.report.refuted

    @property
    def title(self) -> str:
        return f"Audit of {self.target}: {'refuted' if self.refuted else 'not refuted'}"

    def facts(self) -> list[tuple[str, str]]:
        return [("verdict", "refuted" if self.refuted else "not refuted")]

    def __str__(self) -> str:
        return f"{self.title}\n\n{self.text()}"

    def text(self, width: int = 80) -> str:
        """Return the report as text of this width."""
        return self.report.to_text(width)

    def write(self, folder: PathText) -> list[Path]:
        """Write report.html, report.md and report.json into a folder and return their paths."""
        return self.report.write(Path(folder))

    def _repr_html_(self) -> str:
        return framed(self.report.to_html())

    def to_dict(self) -> dict[str, object]:
        fields: dict[str, object] = json.loads(self.report.to_json())
        return fields


def audit_release(
    release: PathText,
    *,
    vault: PathText | None = None,
    photos: PathText | None = None,
    encoder: PathText | Encoder | None = None,
    labels: str | None = None,
    deep: bool = False,
    seed: int = 0,
    progress: Progress = no_progress,
) -> AuditResult:
    """Attack a release, and compare the result with its guarantee.

    With `vault` the attack uses the owner's photos as the truth, on this computer: it measures how
    well a photo can be singled out, its content guessed and its image reconstructed, and how well
    search works. Nothing is sent or charged. An audit can refute a guarantee, but not prove it.

    Parameters:
        release: a folder that `protect` made, a saved model, a table of published tags (or the
            folder that holds it), or with `photos` a file of sketches.
        vault: the vault of the release.
        encoder: with `vault`, the encoder that the release was made with, if it is not built in.
        photos: the folder of the photos: for sketches, for published tags, or if the photos of a
            release were moved.
        labels: with `vault`, the source of what the photos show: "folder", or "FILE.csv:COLUMN".
        deep: use ten times the trials.
        seed: seed of the attacks.
        progress: called with (stage, done, total).

    Raises:
        InvalidParameter: if an option does not apply to what is audited.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> from blindsight.app.protect import protect
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "photos").mkdir()
        >>> Image.new("RGB", (64, 64), "red").save(folder / "photos" / "red.png")
        >>> made = protect(folder / "photos", folder / "release", encoder="pixels")
        >>> audit_release(folder / "release").refuted
        False
    """
    target = Path(release)
    trials = defaults.AUDIT_TRIALS_DEEP if deep else defaults.AUDIT_TRIALS
    if vault is None and labels is not None:
        raise InvalidParameter("--labels needs --vault: it is the truth about the owner's photos.")
    if vault is None and photos is None:
        from blindsight.audit.report.file_report import report_of
        from blindsight.audit.target import audit_file

        progress(f"attacking {target}", 0, 0)
        outcome = audit_file(target, trials=trials, seed=seed)
        progress("drawing", 0, 0)
        return AuditResult(str(target), report_of(outcome, seed=seed))
    report = _with_photos(
        target,
        None if vault is None else Path(vault),
        photos=None if photos is None else Path(photos),
        encoder=encoder,
        labels=labels,
        trials=trials,
        seed=seed,
        progress=lambda done, total: progress("attacking your release", done, total),
    )
    return AuditResult(str(target), report)


def audit_methods(
    *, deep: bool = False, workers: int = 1, seed: int = 0, progress: Progress = no_progress
) -> AuditResult:
    """Attack all five methods, as published and as implemented here.

    Parameters:
        deep: use ten times the trials.
        workers: number of processes for attacks that run a mechanism many times.
        seed: seed of the attacks.
        progress: called with (stage, done, total).

    Returns:
        The report on every claim. It is refuted if one claim is, as some claims of the papers are.

    Examples:
        >>> report = audit_methods()  # takes about a minute  # doctest: +SKIP
        >>> print(report)  # doctest: +SKIP
    """
    from blindsight.audit.papers import report_on_all

    verdicts = method_verdicts(deep=deep, workers=workers, seed=seed, progress=progress)
    progress("drawing", 0, 0)
    return AuditResult("all methods", report_on_all(verdicts, seed=seed))


def method_verdicts(
    *, deep: bool = False, workers: int = 1, seed: int = 0, progress: Progress = no_progress
) -> list[Verdict]:
    """Attack all five methods, and return one verdict for each claim, without the report.

    Parameters:
        deep: use ten times the trials.
        workers: number of processes for attacks that run a mechanism many times.
        seed: seed of the attacks.
        progress: called with (stage, done, total).
    """
    from blindsight.audit.papers import all_verdicts

    return all_verdicts(
        deep=deep,
        seed=seed,
        workers=workers,
        progress=lambda done, total: progress("auditing five methods", done, total),
    )


def attack_release(
    release: PathText, vault: PathText, *, photos: PathText, progress: Progress = no_progress
) -> ReleaseAudit:
    """Attack a release with its photos as the truth, and return the measurements themselves.

    Parameters:
        release: a folder that `protect` made.
        vault: the vault of the release.
        photos: the folder of the photos.
        progress: called with (stage, done, total).
    """
    from blindsight.audit.release import audit_release as attack

    return attack(
        Path(release),
        Path(vault),
        photos=Path(photos),
        progress=lambda done, total, _: progress("attacking", done, total),
    )


def report_figure(
    title: str, caption: str, drawing: str, rows: Sequence[Mapping[str, object]] = ()
) -> Figure:
    """Return a figure for a report.

    Parameters:
        title: the heading.
        caption: a sentence on what the figure shows.
        drawing: an SVG or an image, as HTML.
        rows: the numbers that the figure shows, which the report lists as a table.
    """
    from blindsight.audit.report.page import Figure

    return Figure(title, caption, drawing, [dict(row) for row in rows])


def draw_numbers(verdicts: Sequence[Verdict]) -> str:
    """Return an SVG of the claimed, proven and audited epsilon of each method.

    Parameters:
        verdicts: the verdicts of `method_verdicts`.
    """
    from blindsight.audit.report.page import three_numbers

    return three_numbers(list(verdicts))


def _with_photos(
    target: Path,
    vault: Path | None,
    *,
    photos: Path | None,
    encoder: PathText | Encoder | None,
    labels: str | None,
    trials: int,
    seed: int,
    progress: Callable[[int, int], None],
) -> AuditReport:
    """Attack codes, published tags or sketches with the owner's photos as the truth."""
    from blindsight.audit import release as releases

    progress(0, 0)
    table = target / "tags.csv" if (target / "tags.csv").is_file() else target
    if target.is_file() and target.suffix.lower() != ".csv":
        if photos is None:
            raise InvalidParameter(
                "sketches do not state which photos they are of: give the folder with --photos."
            )
        return releases.audit_sketches(target, photos, trials=trials, seed=seed)
    if vault is None:
        raise InvalidParameter(
            "--photos is for sketches, or for a release together with its --vault."
        )
    if table.is_file():
        if photos is None:
            raise InvalidParameter(
                "published tags do not state where the photos are: give the folder with --photos."
            )
        return releases.audit_tags(table, vault, photos, labels=labels, trials=trials, seed=seed)
    return releases.audit_release(
        target,
        vault,
        photos=photos,
        encoder=encoder,
        labels=labels,
        trials=trials,
        seed=seed,
        progress=lambda done, total, _: progress(done, total),
    )

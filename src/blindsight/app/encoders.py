"""Check an encoder before it is used, and write a built-in one as ONNX files."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from blindsight.app.result import Result
from blindsight.encoders.base import Encoder, Identity
from blindsight.encoders.check import check
from blindsight.encoders.export import export

__all__ = ["CheckedEncoder", "ExportedEncoder", "check_encoder", "export_encoder"]

PathText = str | PathLike[str]


@dataclass(frozen=True)
class CheckedEncoder(Result):
    """What `check_encoder` saw.

    Parameters:
        name: the encoder's name.
        good: whether nothing is wrong.
        offers: what can be done with it.
        problems: what is wrong.
        notes: what could not be checked.
        milliseconds: CPU time for one image and, with a text tower, for one text.
        identity: what stored things will be compared with.
    """

    name: str
    good: bool
    offers: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    milliseconds: dict[str, float]
    identity: Identity | None

    @property
    def title(self) -> str:
        return f"Encoder {self.name}: {'usable' if self.good else 'not usable'}"

    def facts(self) -> list[tuple[str, str]]:
        facts = [("offers", text) for text in self.offers]
        facts += [("problem", text) for text in self.problems]
        facts += [("not checked", text) for text in self.notes]
        facts += [
            (f"CPU time per {what}", f"{value:.1f} ms") for what, value in self.milliseconds.items()
        ]
        return facts


@dataclass(frozen=True)
class ExportedEncoder(Result):
    """What `export_encoder` wrote.

    Parameters:
        name: the encoder's name.
        folder: the folder of ONNX files.
        files: the names of the files.
    """

    name: str
    folder: Path
    files: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"Wrote {self.name} to {self.folder}"

    def facts(self) -> list[tuple[str, str]]:
        return [("file", name) for name in self.files]


def check_encoder(encoder: PathText | Encoder, *, offline: bool = False) -> CheckedEncoder:
    """Check an encoder on known pictures: shapes, preparation, speed, and what it offers.

    Parameters:
        encoder: a built-in name, a folder of ONNX files, a file of vectors,
            `hub:owner/model@commit`, or an opened encoder.
        offline: never ask the network.

    Returns:
        What was seen; an encoder that cannot be opened is a result with problems, not an error.

    Example:
        >>> check_encoder("pixels").good
        True
    """
    source = encoder if not isinstance(encoder, PathLike) else Path(encoder)
    report = check(source, offline=offline)
    return CheckedEncoder(
        report.name,
        report.good,
        report.offers,
        report.problems,
        report.notes,
        dict(report.milliseconds),
        report.identity,
    )


def export_encoder(name: str, folder: PathText, *, pair: bool = False) -> ExportedEncoder:
    """Write a built-in network as a folder of ONNX files that other programs can open too.

    Parameters:
        name: "lite0" or "lite2".
        folder: a new or empty folder.
        pair: write an image-text pair instead, in the layout of CLIP's exports.

    Raises:
        InvalidParameter: The encoder has no single network, or the folder is not empty.
        MissingData: Class names or the text network cannot be fetched.
    """
    target = export(name, folder if isinstance(folder, str) else Path(folder), pair=pair)
    return ExportedEncoder(name, target, tuple(sorted(path.name for path in target.iterdir())))

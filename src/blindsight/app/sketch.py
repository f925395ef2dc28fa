"""Sketch images for training elsewhere, and attack sketches.

Sketches carry no privacy guarantee: their disclosure card states what attackers recover. Flipped
bits (`flip_epsilon`) have a proven epsilon per pixel.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.app.defaults import (
    ATTACKED_SKETCHES,
    ATTACKER_STEPS,
    SKETCH_P,
    SKETCH_Q,
    SKETCH_R,
    no_progress,
    open_ledger,
    open_vault,
)
from blindsight.app.hosting import records_of, share_file
from blindsight.app.result import JobResult, Progress, ResultTable, files_table, to_plain
from blindsight.core.errors import InvalidData, InvalidParameter, MissingData

if TYPE_CHECKING:
    from blindsight.data import ImageSet
    from blindsight.data.listing import FilesRead
    from blindsight.privacy.guarantee import Disclosure, Guarantee
    from blindsight.privacy.ledger import Ledger
    from blindsight.privacy.vault import Vault
    from blindsight.sketching import FlippedBits, NegativeSketcher, QKParameters, SketchSet
    from blindsight.sketching.parameters import ImagePreparation
    from blindsight.sketching.sketches import Permanent

__all__ = [
    "AttackResult",
    "Attacker",
    "RecoveredImages",
    "SketchedImages",
    "read_images",
    "recover_sketches",
    "sketch",
]

#: The largest number of attacked values (pixels times channels): about a minute of work.
_MAX_ATTACKED_VALUES = 4_000_000
#: The largest number of public images for the attacker that learns from them.
_MAX_PUBLIC_IMAGES = 3000
#: The largest number of public images by which a setting is chosen.
_MAX_REFERENCE_IMAGES = 500
_SHOWN_IN_GALLERY = 8

#: The attacker whose PSNR is bounded: all attackers, the paper's, or the informed one.
Attacker = Literal["all", "mean", "informed"]


@dataclass(frozen=True)
class SketchedImages(JobResult):
    """A file of sketches, or of flipped bits.

    Parameters:
        file: the path of the file, which may be shared if its card is acceptable.
        n_sketches: number of images in it.
        n_bytes: size of the file in bytes.
        disclosure: what attackers recover from sketches; None for flipped bits.
        guarantee: the proven guarantee of flipped bits; None for sketches.
        parameters: the parameters of sketches.
        fingerprint: a fingerprint of the parameters of sketches.
        epsilon_per_pixel: the epsilon that sketches imply; not a guarantee.
        simulation: whether the noise has a fixed seed.
        charged: whether a ledger was charged.
        files: number of images that were read, and the files that were not, by kind.
        records: files of the first image's records, one per channel, which reveal it.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> made = sketch("digits", folder / "digits.sketches", random_state=0)
        >>> made.n_sketches, made.guarantee, round(made.epsilon_per_pixel, 1)
        (1797, None, 12.3)
        >>> flipped = sketch("digits", folder / "flipped", flip_epsilon=2, random_state=0)
        >>> round(flipped.guarantee.epsilon, 2), flipped.guarantee.unit
        (2.0, 'pixel')
    """

    file: Path
    n_sketches: int
    n_bytes: int
    disclosure: Disclosure | None = None
    guarantee: Guarantee | None = None
    parameters: dict[str, object] | None = None
    fingerprint: str | None = None
    epsilon_per_pixel: float | None = None
    simulation: bool = False
    charged: bool = False
    files: FilesRead | None = None
    records: tuple[Path, ...] = ()

    def tables(self) -> list[ResultTable]:
        return [] if self.files is None else [files_table(self.files)]

    @property
    def title(self) -> str:
        kind = "sketches" if self.guarantee is None else "images with flipped bits"
        return f"{self.n_sketches:,} {kind} in {self.file} ({self.n_bytes / 1e6:,.1f} MB)"

    @property
    def card(self) -> str:
        """The disclosure card of sketches, or the privacy card of flipped bits."""
        if self.guarantee is not None:
            return self.guarantee.card()
        return "" if self.disclosure is None else self.disclosure.card()

    def facts(self) -> list[tuple[str, str]]:
        if self.guarantee is not None:
            charged = "ledger charged." if self.charged else "not charged: no --ledger."
            return [*self.guarantee.rows(), ("ledger", charged)]
        return [] if self.disclosure is None else list(self.disclosure.rows())

    def to_dict(self) -> dict[str, object]:
        """The fields of `blindsight sketch --json`."""
        if self.guarantee is not None:
            return {
                "file": str(self.file),
                "sketches": self.n_sketches,
                "guarantee": self.guarantee.line(),
                "files": to_plain(self.files),
            }
        return {
            "file": str(self.file),
            "sketches": self.n_sketches,
            "bytes": self.n_bytes,
            "parameters": self.parameters,
            "fingerprint": self.fingerprint,
            "files": to_plain(self.files),
            "epsilon_per_pixel": self.epsilon_per_pixel,
            "verdict": None if self.disclosure is None else self.disclosure.verdict,
            "simulation": self.simulation,
            "records": [str(path) for path in self.records],
        }


@dataclass(frozen=True)
class AttackResult:
    """The quality of the images that one attack recovered.

    Parameters:
        attack: the name of the attack.
        psnr: mean peak signal-to-noise ratio in dB.
        ssim: mean structural similarity; None for images of at most 11 pixels a side.
        exact: share of pixels that are exactly right.
    """

    attack: str
    psnr: float
    ssim: float | None
    exact: float


@dataclass(frozen=True)
class RecoveredImages(JobResult):
    """What attacks recover from sketches.

    Parameters:
        n_sketches: number of attacked sketches.
        attacks: results against the originals, the best first; empty without originals.
        not_tried: which attack was not run, and why.
        parameters: the name of the sketches' parameters.
        verdict: a sentence on what the best attack recovers.
        gallery: the file with original and recovered images.
        settings: the file with the originals as recovered with Q1 to Q12.
        files: the files of originals and public images that were read and that were not.

    Examples:
        >>> import tempfile
        >>> made = sketch("digits", f"{tempfile.mkdtemp()}/digits.sketches", random_state=0)
        >>> recovered = recover_sketches(made.file, originals="digits", count=5)
        >>> recovered.attacks[0].attack, recovered.attacks[0].psnr < 12
        ('denoising', True)
    """

    n_sketches: int
    attacks: tuple[AttackResult, ...]
    not_tried: str | None
    parameters: str
    verdict: str
    gallery: Path | None = None
    settings: Path | None = None
    files: FilesRead | None = None

    @property
    def title(self) -> str:
        return f"{self.parameters}: {self.verdict}"

    def facts(self) -> list[tuple[str, str]]:
        drawings = (("gallery", self.gallery), ("with Q1 to Q12", self.settings))
        return [(label, str(path)) for label, path in drawings if path is not None]

    def tables(self) -> list[ResultTable]:
        files = [] if self.files is None else [files_table(self.files)]
        if not self.attacks:
            return files
        rows = [
            (
                item.attack,
                f"{item.psnr:.4g}",
                "-" if item.ssim is None else f"{item.ssim:.4g}",
                f"{item.exact:.4g}",
            )
            for item in self.attacks
        ]
        columns = ("attack", "PSNR (dB)", "SSIM", "pixels exactly right")
        title = f"recovered of {self.n_sketches:,} images, the best first"
        return [ResultTable(title, columns, rows), *files]

    def to_dict(self) -> dict[str, object]:
        """The fields of `blindsight sketch recover --json`."""
        listed = [
            {"attack": a.attack, "psnr": a.psnr, "ssim": a.ssim, "exact": a.exact}
            for a in self.attacks
        ]
        return {
            "sketches": self.n_sketches,
            "attacks": listed,
            "best": self.attacks[0].attack if self.attacks else None,
            "not_tried": self.not_tried,
            "verdict": self.verdict,
            "gallery": None if self.gallery is None else str(self.gallery),
            "settings": None if self.settings is None else str(self.settings),
            "files": to_plain(self.files),
        }


def sketch(
    source: str | Path,
    out: str | Path,
    *,
    q: str | tuple[float, ...] = SKETCH_Q,
    p: tuple[float, ...] = SKETCH_P,
    r: float = SKETCH_R,
    max_psnr: float | None = None,
    epsilon_per_pixel: float | None = None,
    attacker: Attacker = "all",
    reference: str | Path | None = None,
    flip_epsilon: float | None = None,
    split: str | None = None,
    size: int | None = None,
    grey: bool = False,
    random_state: int | None = None,
    vault: str | Path | None = None,
    ledger: str | Path | None = None,
    dataset: str = "images",
    actor: str | None = None,
    purpose: str = "",
    unsafe_records: bool = False,
    ray: str | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> SketchedImages:
    """Turn images into a file of sketches, or of flipped bits, for training elsewhere.

    A second call resumes a file that was left unfinished.

    Parameters:
        source: a folder of images (a subfolder per class gives labels), or a known data set.
        out: the file to write.
        q: a setting of the paper, "Q1" to "Q12", or the probabilities q_1, ..., q_L.
        p: the probabilities p_1, ..., p_K of the types of records.
        r: number of records per bit.
        max_psnr: choose q so that the PSNR of any attacker is at most this; needs `reference`.
        epsilon_per_pixel: choose q so that the implied epsilon per pixel is at most this.
        attacker: the attacker whose PSNR `max_psnr` bounds: "all", "mean" or "informed".
        reference: public images of the same size and kind, for `max_psnr`.
        flip_epsilon: flip bits instead, with this proven epsilon per pixel.
        split: "train" or "test", for known data sets.
        size: resize images to size x size pixels.
        grey: convert colour to grey.
        random_state: a seed for a simulation, which the card states.
        vault: folder of the key of the noise, with which an image always has the same sketch; with
            a ledger, by default `out` with ".vault" appended.
        ledger: a ledger to charge, with `flip_epsilon`; by default the one that earlier releases
            of the vault were charged to.
        dataset: the account of the images in the ledger.
        actor: the name of the person who asks for it (default: the operating system's user).
        purpose: the purpose, which the ledger stores.
        unsafe_records: also write the records of the first image, which reveal it, for study.
        ray: distribute the work over "local" processes or a Ray cluster at this address.
        force: delete a finished `out` first, which releases the images a second time.
        progress: called with (stage, done, total).

    Returns:
        The file and its card.

    Raises:
        InvalidParameter: if options exclude each other.
        BudgetExceeded: if the remaining budget is too small; nothing is written.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "photos").mkdir()
        >>> rng = np.random.default_rng(0)
        >>> for number in range(3):
        ...     pixels = rng.integers(0, 256, (16, 16), dtype=np.uint8)
        ...     Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
        >>> made = sketch(folder / "photos", folder / "photos.sketches", random_state=0)
        >>> made.n_sketches, made.simulation
        (3, True)
    """
    from blindsight.sketching.parameters import ImagePreparation

    if sum(value is not None for value in (max_psnr, epsilon_per_pixel, flip_epsilon)) > 1:
        raise InvalidParameter(
            "give at most one of --max-psnr, --epsilon-per-pixel and --flip-epsilon."
        )
    if vault is not None and (random_state is not None or ray is not None):
        raise InvalidParameter(
            "--vault excludes --seed and --ray: the noise is derived from its key, which stays on "
            "this machine."
        )
    path = Path(out)
    images, files = _read_photos(str(source), split, progress)
    prepare = ImagePreparation.of(images, size=size, grey=grey)
    # A ledger needs a vault: each of them detects if the other is an older copy.
    opened_vault = None
    charged = ledger is not None and flip_epsilon is not None
    if random_state is None and (vault is not None or charged):
        opened_vault = open_vault(vault, path)
    # Another run with the same vault waits, because two runs must not write one file.
    with nullcontext() if opened_vault is None else opened_vault.running():
        permanent = None
        if opened_vault is not None and ray is None:
            permanent = _permanent(opened_vault, images, path)
        source_of_noise = random_state if permanent is None else permanent
        if force and path.exists():
            _delete(path)
        if flip_epsilon is not None:
            account = open_ledger(ledger, dataset, opened_vault, actor=actor, purpose=purpose)
            flipped = _flip(
                images,
                prepare,
                path,
                flip_epsilon,
                source_of_noise,
                account,
                opened_vault,
                ray,
                progress,
            )
            share_file(path, "flipped bits", flipped.guarantee, opened_vault)
            return replace(flipped, files=files)
        first = prepare(images[:1])
        parameters = _parameters(
            first,
            q=q,
            p=p,
            r=r,
            max_psnr=max_psnr,
            epsilon_per_pixel=epsilon_per_pixel,
            attacker=attacker,
            reference=None if reference is None else str(reference),
        )
        from blindsight.sketching import NegativeSketcher

        sketcher = NegativeSketcher(parameters, random_state=source_of_noise).fit(first)
        sketches = _write(path, images, sketcher, prepare, ray, "sketching", progress)
        card = "" if sketcher.disclosure_ is None else sketcher.disclosure_.card()
        share_file(path, "sketches", None, opened_vault, card=card)
        records: list[Path] = []
        if unsafe_records:
            databases = sketcher.records(prepare(images[:1])[0], unsafe_records=True)
            for number, database in enumerate(databases):
                records.append(path.with_name(f"{path.name}.records-{number}"))
                database.save(records[-1], unsafe_records=True)
        return SketchedImages(
            file=path,
            n_sketches=len(sketches),
            n_bytes=path.stat().st_size,
            disclosure=sketcher.disclosure_,
            parameters=parameters.to_dict(),
            fingerprint=parameters.fingerprint,
            epsilon_per_pixel=sketcher.leak_.epsilon_pixel,
            simulation=random_state is not None,
            files=files,
            records=tuple(records),
        )


def recover_sketches(
    sketches: str | Path,
    *,
    originals: str | Path | None = None,
    split: str | None = None,
    public: str | Path | None = None,
    count: int = ATTACKED_SKETCHES,
    size: int | None = None,
    grey: bool = False,
    steps: int = ATTACKER_STEPS,
    gallery: str | Path | None = None,
    settings: str | Path | None = None,
    progress: Progress = no_progress,
) -> RecoveredImages:
    """Attack a file of sketches with every attacker, and measure what they recover.

    Parameters:
        sketches: a file that `sketch` wrote.
        originals: the images behind the sketches, to measure against.
        split: "train" or "test", if the originals are a known data set.
        public: public images of the same kind; adds the attack that learns from them.
        count: the largest number of sketches to attack.
        size: the size to which the originals were resized.
        grey: whether the originals were converted to grey.
        steps: training steps of the attack that learns, which bound its time.
        gallery: the file (.svg or .png) for a drawing of original and recovered images.
        settings: the file for a drawing of the originals as recovered with Q1 to Q12.
        progress: called with (stage, done, total).

    Returns:
        The results, the best attacker first, and a verdict.

    Raises:
        InvalidData: if the originals are not the images behind the sketches.
        InvalidParameter: if `settings` is given without `originals`.

    Examples:
        >>> import tempfile
        >>> made = sketch("digits", f"{tempfile.mkdtemp()}/digits.sketches", random_state=0)
        >>> recovered = recover_sketches(made.file, originals="digits", count=5)
        >>> [attack.attack for attack in recovered.attacks]
        ['denoising', 'smoothing', 'second reading', 'posterior mean']
    """
    from blindsight.sketching import QKParameters, SketchSet, leak_of
    from blindsight.sketching.attackers import Suite, measure, measured_verdict
    from blindsight.sketching.paper import draw_gallery, settings_gallery
    from blindsight.sketching.parameters import read_like

    stored = SketchSet.open(Path(sketches))
    chosen = stored[: _affordable(count, stored)]
    truth, files = None, None
    if originals is not None:
        original_images, files = _read_photos(str(originals), split, progress)
        truth = _originals(original_images, chosen, size, grey)
    public_pixels = None
    if public is not None:
        public_images, public_files = _read_photos(str(public), None, progress)
        files = files + public_files if files and public_files else files or public_files
        public_pixels = read_like(public_images, stored.image_shape, most=_MAX_PUBLIC_IMAGES)
    suite = Suite(
        stored.parameters,
        public=public_pixels,
        steps=steps,
        progress=lambda done, total: progress("learning from public images", done, total),
    )
    guesses = suite.recover(chosen)
    depth = stored.parameters.depth
    results = []
    if truth is not None:
        results = [measure(name, truth, guess, depth=depth) for name, guess in guesses.items()]
        results.sort(key=lambda result: -result.psnr)
    if gallery is not None:
        rows: list[tuple[str, NDArray[np.generic]]] = []
        if truth is not None:
            rows.append(("original", truth[:_SHOWN_IN_GALLERY]))
        rows += [(name, guess[:_SHOWN_IN_GALLERY]) for name, guess in guesses.items()]
        draw_gallery(Path(gallery), rows, peak=2.0**depth - 1)
    if settings is not None:
        if truth is None:
            raise InvalidParameter("--settings needs --originals.")
        settings_gallery(Path(settings), truth[:_SHOWN_IN_GALLERY])
    if results:
        verdict = measured_verdict(results, stored.image_shape, missing=suite.missing)
    elif isinstance(stored.parameters, QKParameters):
        verdict = leak_of(stored.parameters).verdict_at(stored.image_shape)
    else:
        verdict = f"proven: {stored.parameters.name}"
    return RecoveredImages(
        n_sketches=len(chosen),
        attacks=tuple(AttackResult(r.attack, r.psnr, r.ssim, r.exact) for r in results),
        not_tried=suite.missing,
        parameters=stored.parameters.name,
        verdict=verdict,
        gallery=None if gallery is None else Path(gallery),
        settings=None if settings is None else Path(settings),
        files=files,
    )


def read_images(source: str, split: str | None) -> ImageSet:
    """Open a folder of images, with labels if it has a subfolder per class, or a known data set.

    Parameters:
        source: the folder, or the name of the data set.
        split: "train" or "test", for known data sets.

    Raises:
        MissingData: there is neither such a folder nor such a data set.
    """
    from blindsight import data
    from blindsight.data.listing import load_class_folders, load_folder

    folder = Path(source)
    if folder.is_dir():
        folder = folder.resolve()  # workers may run in another directory
        classes = [
            entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        ]
        return load_class_folders(folder) if classes else load_folder(folder)
    if source not in data.CATALOGUE:
        raise MissingData(
            f"{source} is neither a folder nor a known data set. Check the path, or see blindsight "
            "data list."
        )
    images: ImageSet = data.load(source, split=split)
    return images


def _read_photos(
    source: str, split: str | None, progress: Progress
) -> tuple[ImageSet, FilesRead | None]:
    """Open the images of a folder that can be read, with the table of files, or a data set."""
    from blindsight.data.listing import read_folder

    if not Path(source).is_dir():
        return read_images(source, split), None
    # Workers may run in another directory.
    return read_folder(
        Path(source).resolve(),
        classes=True,
        progress=lambda done, total: progress("reading", done, total),
    )


def _parameters(
    first: NDArray[np.uint8],
    *,
    q: str | tuple[float, ...],
    p: tuple[float, ...],
    r: float,
    max_psnr: float | None,
    epsilon_per_pixel: float | None,
    attacker: Attacker,
    reference: str | None,
) -> QKParameters:
    """Return the stated parameters, or those that meet the stated goal."""
    from blindsight.sketching import calibration
    from blindsight.sketching.parameters import read_like, resolve

    if max_psnr is None and epsilon_per_pixel is None:
        return resolve(q, p=p, r=r)
    shape = (1 if first.ndim == 3 else 3, *first.shape[1:3])
    reference_pixels = None
    if reference is not None:
        reference_pixels = read_like(
            read_images(reference, None), shape, most=_MAX_REFERENCE_IMAGES
        )
    return calibration.calibrate(
        max_psnr=max_psnr,
        epsilon_per_pixel=epsilon_per_pixel,
        attacker=attacker,
        r=r,
        reference=reference_pixels,
    )


def _write(
    path: Path,
    images: ImageSet,
    sketcher: NegativeSketcher,
    prepare: ImagePreparation,
    ray: str | None,
    stage: str,
    progress: Progress,
) -> SketchSet:
    from blindsight.index.bulk import pool_at, sketch_to

    return sketch_to(
        path,
        images,
        sketcher,
        prepare=prepare,
        pool=pool_at(ray),
        progress=lambda done, total: progress(stage, done, total),
    )


def _flip(
    images: ImageSet,
    prepare: ImagePreparation,
    path: Path,
    epsilon: float,
    source_of_noise: int | Permanent | None,
    account: Ledger | None,
    vault: Vault | None,
    ray: str | None,
    progress: Progress,
) -> SketchedImages:
    """Charge the ledger once, and write flipped bits to a file."""
    from blindsight.index.bulk import pool_at, sketch_to
    from blindsight.sketching import FlippedBits

    flipper: FlippedBits = FlippedBits(epsilon, random_state=source_of_noise).fit(
        prepare(images[:1])
    )
    charged = account is not None
    if account is not None and vault is not None and ray is not None:
        # Workers draw fresh noise, so each job is a release of its own, named by its key.
        records = _records(vault, images)
        account = vault.account(account, release="", records=records, out=path)
    elif vault is not None and account is None:
        # Without a ledger the vault stores the charge, until a later run gives one.
        release, description = vault.release_of(flipper.mechanism_id_), "flipped bits of photos"
        records = _records(vault, images)
        vault.charge(
            None, flipper.guarantee_, release=release, what=description, records=records, out=path
        )
    sketch_to(
        path,
        images,
        flipper,
        prepare=prepare,
        ledger=account,
        pool=pool_at(ray),
        progress=lambda done, total: progress("flipping", done, total),
    )
    return SketchedImages(
        file=path,
        n_sketches=len(images),
        n_bytes=path.stat().st_size,
        guarantee=flipper.guarantee_,
        simulation=isinstance(source_of_noise, int),
        charged=charged,
    )


def _permanent(vault: Vault, images: ImageSet, out: Path) -> Permanent:
    from blindsight.sketching.sketches import Permanent

    return Permanent(vault, tuple(_records(vault, images)), out)


def _records(vault: Vault, images: ImageSet) -> list[str]:
    """Return the record ids of photos; none for a data set whose images are not files."""
    from blindsight.data import Files

    files = images.images
    return records_of(vault, files.paths, files.decoded) if isinstance(files, Files) else []


def _delete(path: Path) -> None:
    """Delete a finished file of sketches; refuse any other file."""
    from blindsight.sketching import SketchSet

    SketchSet.open(path)
    path.unlink()


def _affordable(count: int, stored: SketchSet) -> int:
    """Return a number of sketches that can be attacked within minutes, for any image size."""
    most = max(1, _MAX_ATTACKED_VALUES // math.prod(stored.image_shape))
    return int(min(count, len(stored), most))


def _originals(
    images: ImageSet, stored: SketchSet, size: int | None, grey: bool
) -> NDArray[np.uint8]:
    """Return the originals of these sketches; other images would make the sketches look safe."""
    from blindsight.sketching.parameters import ImagePreparation

    part = images[: len(stored)]
    truth = ImagePreparation.of(part, size=size, grey=grey)(part)
    channels, height, width = stored.image_shape
    if truth.shape != (len(stored), height, width) + (3,) * (channels == 3):
        colour = ("grey", "in colour")
        raise InvalidData(
            f"--originals must be the images behind the sketches, {len(stored)} of {width} x "
            f"{height} pixels {colour[channels == 3]}, got {len(truth)} of {truth.shape[2]} x "
            f"{truth.shape[1]} {colour[truth.ndim == 4]}. Name the folder that was sketched, with "
            "the same --size and --grey."
        )
    return truth

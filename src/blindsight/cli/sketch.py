"""`blindsight sketch FOLDER OUT` makes sketches; `blindsight sketch recover SKETCHES` attacks
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from blindsight.cli.terminal import console, emit_json, notes, progress_bar, show_card, table

__all__ = ["register"]

MOST_VALUES = 4_000_000  # pixels times channels that `recover` attacks: about a minute
MOST_PUBLIC = 3000  # public images that the learning attacker is given
MOST_REFERENCE = 500  # public images that a setting is chosen by


class _MakeByDefault(TyperGroup):
    """`sketch FOLDER OUT` means `sketch make FOLDER OUT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["make", *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verbs = typer.Typer(
        cls=_MakeByDefault,
        no_args_is_help=True,
        help="Turn images into sketches for a server to train on (sketch FOLDER OUT); attack them "
        "(sketch recover).",
    )
    verbs.command("make")(make)
    verbs.command("recover")(recover)
    app.add_typer(verbs, name="sketch")


def make(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="Images: a folder (a subfolder per class gives labels), or a known set such as "
            "mnist.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file of sketches to write.")],
    q: Annotated[str, typer.Option(help="Q1 to Q12, or q_1,...,q_L for an L-bit image.")] = "Q3",
    p: Annotated[str, typer.Option(help="Types of records, p_1,...,p_K.")] = "0.7,0.24,0.06",
    r: Annotated[float, typer.Option(help="Records a bit.")] = 6.5,
    max_psnr: Annotated[
        float | None, typer.Option(help="Choose q for this: any attacker's PSNR at most.")
    ] = None,
    epsilon_per_pixel: Annotated[
        float | None, typer.Option(help="Choose q for this: implied epsilon per pixel at most.")
    ] = None,
    attacker: Annotated[
        str,
        typer.Option(
            help="Whose PSNR: all attackers', or only mean (the paper's) or informed (pixel by "
            "pixel)."
        ),
    ] = "all",
    reference: Annotated[
        str | None,
        typer.Option(help="Public images of the size and kind of these, for --max-psnr."),
    ] = None,
    flip_epsilon: Annotated[
        float | None, typer.Option(help="Flip bits instead: a proven epsilon per pixel.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="train or test, for known sets.")] = None,
    size: Annotated[int | None, typer.Option(help="Resize to size x size pixels.")] = None,
    grey: Annotated[bool, typer.Option("--grey", help="Turn colour into grey.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")
    ] = None,
    vault: Annotated[
        Path | None,
        typer.Option(
            help="Keep here a key by which an image has one sketch, however often it is sent."
        ),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger to charge (with --flip-epsilon).")
    ] = None,
    dataset: Annotated[str, typer.Option(help="The data set's name in the ledger.")] = "images",
    unsafe_records: Annotated[
        bool,
        typer.Option(
            "--unsafe-records", help="Also write the first image's records beside OUT, for study."
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(help="Workers that share the work: local, or a Ray cluster's address."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Delete a finished OUT first: the images are released a second time."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Sketch images into a file, block by block.

    A stopped job is resumed by the same command; a finished file is not written over.
    """
    from blindsight.core.errors import InvalidParameter
    from blindsight.sketching.preparation import Preparation, read_like

    if sum(goal is not None for goal in (max_psnr, epsilon_per_pixel, flip_epsilon)) > 1:
        raise InvalidParameter(
            "give at most one of --max-psnr, --epsilon-per-pixel and --flip-epsilon."
        )
    if vault is not None and (seed is not None or ray is not None):
        raise InvalidParameter(
            "--vault goes with neither --seed nor --ray: noise comes from its key, which stays "
            "here."
        )
    images = _images(source, split)
    prepare = Preparation.of(images, size=size, grey=grey)
    dice = seed if vault is None else _permanent(vault)
    if force and out.exists():
        _delete(out)
    if flip_epsilon is not None:
        _flip(images, prepare, out, flip_epsilon, dice, ledger, dataset, ray, json)
        return
    from blindsight.index.bulk import pool_at, sketch_to
    from blindsight.sketching import NegativeSketcher
    from blindsight.sketching.calibration import calibrate
    from blindsight.sketching.parameters import resolve

    parameters: Any
    first = prepare(images[:1])
    if max_psnr is not None or epsilon_per_pixel is not None:
        shape = (1 if first.ndim == 3 else 3, *first.shape[1:3])
        known = (
            None
            if reference is None
            else read_like(_images(reference, None), shape, most=MOST_REFERENCE)
        )
        parameters = calibrate(
            max_psnr=max_psnr,
            epsilon_per_pixel=epsilon_per_pixel,
            attacker=attacker,
            r=r,
            reference=known,
        )
    else:
        parameters = resolve(q if q.startswith("Q") else _numbers("q", q), p=_numbers("p", p), r=r)
    sketcher = NegativeSketcher(parameters, random_state=dice).fit(first)
    with progress_bar("sketching") as progress:
        sketches = sketch_to(
            out, images, sketcher, prepare=prepare, pool=pool_at(ray), progress=progress
        )
    if unsafe_records:
        for number, database in enumerate(
            sketcher.records(prepare(images[:1])[0], unsafe_records=True)
        ):
            database.save(out.with_name(f"{out.name}.records-{number}"), unsafe_records=True)
    result = {
        "file": str(out),
        "sketches": len(sketches),
        "bytes": out.stat().st_size,
        "parameters": parameters.to_dict(),
        "fingerprint": parameters.fingerprint,
        "epsilon_per_pixel": sketcher.leak_.epsilon_pixel,
        "verdict": sketcher.disclosure_.verdict,
        "simulation": seed is not None,
    }
    if json:
        emit_json(result)
        return
    console.print(f"{len(sketches):,} sketches in {out} ({result['bytes'] / 1e6:,.1f} MB)")
    show_card(sketcher.disclosure_.card())


def recover(
    sketches: Annotated[
        Path, typer.Argument(help="A file that `blindsight sketch FOLDER OUT` wrote.")
    ],
    originals: Annotated[
        str | None, typer.Option(help="The images behind them, to measure against.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train or test, where originals are a known set.")
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            help="Public images of the same kind: adds the attacker who learns from them."
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="How many sketches to attack, at most.", min=1)] = 100,
    size: Annotated[
        int | None, typer.Option(help="Size that the originals were brought to.")
    ] = None,
    grey: Annotated[
        bool, typer.Option("--grey", help="The originals were turned to grey.")
    ] = False,
    steps: Annotated[
        int, typer.Option(help="Steps of the learning attacker: bounds its time.", min=1)
    ] = 120,
    gallery: Annotated[
        Path | None, typer.Option(help="Draw original and recovered images here (.svg or .png).")
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(help="Draw the originals as recovered under Q1 to Q12 here.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Attack a file of sketches with every attacker there is: what can be seen of the images?"""
    from blindsight.core.errors import InvalidParameter
    from blindsight.sketching import QKParameters, SketchSet, leak_of
    from blindsight.sketching.attackers import Suite, measure, measured_verdict
    from blindsight.sketching.gallery import draw_gallery, settings_gallery
    from blindsight.sketching.preparation import read_like

    held = SketchSet.open(sketches)
    chosen = held[: _affordable(count, held)]
    truth = None if originals is None else _originals(_images(originals, split), chosen, size, grey)
    if settings is not None and truth is None:
        raise InvalidParameter("--settings needs --originals.")
    with progress_bar("learning from public images") as progress:
        known = (
            None
            if public is None
            else read_like(_images(public, None), held.image_shape, most=MOST_PUBLIC)
        )
        suite = Suite(held.parameters, public=known, steps=steps, progress=progress)
    shown = suite.recover(chosen)
    depth = held.parameters.depth
    results = (
        []
        if truth is None
        else [measure(name, truth, guess, depth=depth) for name, guess in shown.items()]
    )
    results.sort(key=lambda result: -result.psnr)
    if gallery is not None:
        rows = [("original", truth[:8])] if truth is not None else []
        draw_gallery(
            gallery,
            rows + [(name, guess[:8]) for name, guess in shown.items()],
            peak=2.0**depth - 1,
        )
    if settings is not None:
        settings_gallery(settings, truth[:8])  # type: ignore[index]
    if results:
        verdict = measured_verdict(results, held.image_shape, missing=suite.missing)
    elif isinstance(held.parameters, QKParameters):
        verdict = leak_of(held.parameters).verdict_at(held.image_shape)
    else:
        verdict = f"proven: {held.parameters.name}"
    if json:
        emit_json(
            {
                "sketches": len(chosen),
                "attacks": [
                    {"attack": r.attack, "psnr": r.psnr, "ssim": r.ssim, "exact": r.exact}
                    for r in results
                ],
                "best": results[0].attack if results else None,
                "not_tried": suite.missing,
                "verdict": verdict,
                "gallery": None if gallery is None else str(gallery),
            }
        )
        return
    if results:
        columns = ["attack", "PSNR (dB)", "SSIM", "pixels exactly right"]
        rows_of = [
            (r.attack, r.psnr, r.ssim if r.ssim is not None else "-", r.exact) for r in results
        ]
        table(f"recovered of {len(chosen):,} images, the best first", columns, rows_of)
    console.print(f"{held.parameters.name}: {verdict}", markup=False)
    if gallery is not None:
        console.print(f"gallery: {gallery}")


def _affordable(count: int, held: Any) -> int:
    """So many sketches that attacking them takes minutes at most, whatever the size of an image."""
    return int(min(count, len(held), max(1, MOST_VALUES // math.prod(held.image_shape))))


def _flip(
    images: Any,
    prepare: Callable[[Any], Any],
    out: Path,
    epsilon: float,
    dice: Any,
    ledger: Path | None,
    dataset: str,
    ray: str | None,
    json: bool,
) -> None:
    """Flipped bits into a file: the ledger is charged once, before the first block."""
    from blindsight.index.bulk import pool_at, sketch_to
    from blindsight.privacy import Ledger
    from blindsight.sketching.estimator import FlippedBits

    flipper = FlippedBits(epsilon, random_state=dice).fit(prepare(images[:1]))
    account = None if ledger is None else Ledger(ledger, dataset=dataset)
    with notes(), progress_bar("flipping") as progress:
        sketch_to(
            out,
            images,
            flipper,
            prepare=prepare,
            ledger=account,
            pool=pool_at(ray),
            progress=progress,
        )
    if json:
        emit_json(
            {"file": str(out), "sketches": len(images), "guarantee": flipper.guarantee_.line()}
        )
        return
    console.print(f"{len(images):,} images in {out}")
    show_card(flipper.guarantee_.card())
    console.print("ledger charged." if ledger is not None else "not charged: no --ledger.")


def _permanent(folder: Path) -> Any:
    """The noise of the vault in this folder, which is made where there is none."""
    from blindsight.privacy.vault import Vault
    from blindsight.sketching.permanent import Permanent

    return Permanent(Vault.open_or_create(folder))


def _delete(out: Path) -> None:
    """Make way for a new release; a file that does not hold sketches is not ours to delete."""
    from blindsight.sketching import SketchSet

    SketchSet.open(out)
    out.unlink()


def _images(source: str, split: str | None) -> Any:
    """A folder of images, with labels where it has a subfolder per class, or a known set by
    name.
    """
    from blindsight import data
    from blindsight.core.errors import MissingData
    from blindsight.data.formats.folders import load_class_folders, load_folder

    folder = Path(source)
    if folder.is_dir():
        folder = folder.resolve()  # workers may stand elsewhere
        classes = [
            entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        ]
        return load_class_folders(folder) if classes else load_folder(folder)
    if source not in data.CATALOGUE:
        raise MissingData(
            f"{source} is neither a folder nor a known data set. Check the path, or see blindsight "
            "data list."
        )
    return data.load(source, split=split)


def _originals(images: Any, held: Any, size: int | None, grey: bool) -> Any:
    """The images behind these sketches; others would be compared in vain, and look safe."""
    from blindsight.core.errors import InvalidData
    from blindsight.sketching.preparation import Preparation

    part = images[: len(held)]
    truth = Preparation.of(part, size=size, grey=grey)(part)
    channels, height, width = held.image_shape
    if truth.shape != (len(held), height, width) + (3,) * (channels == 3):
        colour = ("grey", "in colour")
        raise InvalidData(
            f"--originals must be the images behind the sketches, {len(held)} of {width} x "
            f"{height} pixels "
            f"{colour[channels == 3]}, got {len(truth)} of {truth.shape[2]} x {truth.shape[1]} "
            f"{colour[truth.ndim == 4]}. Name the folder that was sketched, with the same --size "
            "and --grey."
        )
    return truth


def _numbers(name: str, text: str) -> tuple[float, ...]:
    from blindsight.core.errors import InvalidParameter

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidParameter(
            f"{name} must be numbers with commas between, got {text!r}."
        ) from None

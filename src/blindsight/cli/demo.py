"""`blindsight demo`: an album of photographs protected, searched, tagged and attacked by the verbs
themselves.
"""

from __future__ import annotations

import importlib.util
import io
import json as text
import textwrap
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, progress_bar
from blindsight.core.errors import InvalidParameter, MissingData, MissingDependency

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from blindsight.audit.release import ReleaseAudit
    from blindsight.audit.report.page import Figure
    from blindsight.audit.report.verdict import Verdict

__all__ = ["Strip", "film", "register"]

_FIRST, _ACROSS = 10, 6
_SHOWN = ("cat", "retina", "tissue")
_WORDS = {
    "a cat": "cat",
    "a cup of coffee": "coffee",
    "a rocket": "rocket",
    "a motorcycle": "motorcycle",
}
_COLUMNS = ("method", "per", "claimed", "proven", "audited", "refuted")
_NUMBERS = (
    "A red diamond to the right of the blue bar is a refuted claim. Audited numbers have a ceiling "
    "set by the number "
    "of trials, so a gap to the proven one is not a gap in the proof."
)
_PARTS = ("skimage", "onnxruntime", "tokenizers", "numba", "matplotlib")
_STATISTICS_ENCODER = "lite0"
_TAGS = ("cat", "coffee", "motorcycle", "rocket", "flower", "temple")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("demo")(demo)


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the album, what is made of it, and the report.")
    ] = Path("out"),
    seed: Annotated[int, typer.Option(help="Seed of the attacks on the papers.", min=0)] = 0,
    papers: Annotated[
        bool, typer.Option(help="Attack the five papers' claims too (about a minute).")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Protect an album of photographs, open it as its receiver, search it, tag it, send statistics
    of it and attack it; leaves OUT/report.html for a browser.

    Run it again as often as you like: each photograph is released and charged once.
    """
    _check_parts()
    if out.exists() and not out.is_dir():
        raise InvalidParameter(f"--out must be a folder, and {out} is a file. Choose another name.")
    console.quiet = json
    try:
        place = DemoFolder(out)
        found: dict[str, Any] = {
            "protected": _protect(place),
            "opened": _open(place),
            "searched": _search(place),
            "words": _words(place),
            "tagged": _tag(place),
            "sent": _send(place),
        }
        attacked = _attack(place)
        found["attacked"] = attacked.to_dict()
        found["numbers"] = _report(place, found, attacked, papers=papers, seed=seed)
    finally:
        console.quiet = False
    if json:
        emit_json(found)


def _check_parts() -> None:
    """Before anything is written: what the demo needs beyond the core."""
    missing = [name for name in _PARTS if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"the demo needs packages that are not installed: {', '.join(missing)}."
        )


@dataclass(frozen=True)
class DemoFolder:
    """The folders of the demo."""

    out: Path

    @property
    def photos(self) -> Path:
        """The album: what is to be protected."""
        return self.out / "album"

    @property
    def queries(self) -> Path:
        """One more view of each photograph, to search with."""
        return self.out / "queries"

    @property
    def index(self) -> Path:
        """The release, which is shared."""
        return self.out / "index"


def run_verb(*words: str | Path) -> dict[str, Any]:
    """Run a verb of this command line here, and return what it says under --json."""
    from blindsight.cli.main import app

    said = io.StringIO()
    with redirect_stdout(said):
        app([*map(str, words), "--json"], standalone_mode=False)
    return dict(text.loads(said.getvalue()))


def _step(number: int, title: str, *commands: str) -> None:
    console.print(f"\n[bold]{number}  {title}[/bold]")
    for command in commands:
        # With 7 columns of indentation and a backslash, no line is wider than 80 columns.
        lines = textwrap.wrap(
            f"$ blindsight {command}", 71, break_long_words=False, break_on_hyphens=False
        )
        console.print("   " + " \\\n       ".join(lines), style="dim", markup=False)


def _say(*lines: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 3)))


def _protect(place: DemoFolder) -> dict[str, Any]:
    """The album on disk, a budget, and its codes; what was released before is neither released nor
    charged again.
    """
    album = f"{place.photos}"
    _step(
        1,
        "Protect an album",
        f"budget grant --ledger {place.out}/budget.db --dataset album --epsilon 8",
        f"protect {album} --out {place.index} --ledger {place.out}/budget.db",
    )
    from blindsight.app.labelled_images import album_kinds

    count = write_album(place)
    budget = place.out / "budget.db"
    run_verb("budget", "grant", "--ledger", budget, "--dataset", "album", "--epsilon", "8")
    done = run_verb(
        "protect", album, "--out", place.index, "--ledger", budget, "--dataset", "album"
    )
    proven = done["guarantee"]["epsilon"]
    _say(
        f"{count} views of {len(album_kinds())} photographs, a retina and a tissue slide among "
        "them. Each became one "
        f"noisy cell: proven ε = {proven:g} per photograph.",
        f"{done['released']} released now, {done['known']} were there before. Ledger: "
        f"{done['ledger']}.",
        f"Share {place.index}. Keep {done['vault']} private: the key of the noise, and the names.",
    )
    return {
        "photographs": count,
        "released": done["released"],
        "epsilon": proven,
        "index": done["index"],
    }


def _open(place: DemoFolder) -> dict[str, object]:
    """What somebody who received the release sees: it is checked before it is used."""
    _step(2, "Open it, as the one who received it", f"open {place.index}")
    opened = run_verb("open", place.index)
    _say(
        "The signature and every file were checked. Compare its fingerprint with what the owner "
        f"tells you: {opened['fingerprint']}.",
        f"{place.index / 'search.html'} searches it in any browser, with no network.",
    )
    return {"fingerprint": opened["fingerprint"]}


def write_album(place: DemoFolder) -> int:
    """The built-in album as files, a folder per photograph; the last view of each is a query, not
    in the album.
    """
    from PIL import Image

    from blindsight.app.labelled_images import album_pictures

    pictures = album_pictures()
    last = {name.rpartition("-")[0]: name for name, _ in pictures}
    place.queries.mkdir(parents=True, exist_ok=True)
    stored = 0
    for name, pixels in pictures:
        kind, _, number = name.rpartition("-")
        asked = last[kind] == name
        path = place.queries / f"{kind}.jpg" if asked else place.photos / kind / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        stored += not asked
        if not path.exists():
            Image.fromarray(pixels).save(path, quality=92)
    return stored


def _kind(name: str) -> str:
    """What a view shows: the name of its folder."""
    return Path(name).parent.name


def _search(place: DemoFolder) -> dict[str, Any]:
    """By picture: what the codes find, and beside it what the photographs themselves would."""
    _step(3, "Search it by picture", f"search {place.index} {place.queries} -k {_FIRST}")
    ways = {
        "without protection": ("--rerank", str(len(list(place.photos.glob("*/*"))))),
        "protected": (),
    }
    found = {
        way: {
            Path(one["query"]).stem: [hit["names"][0] for hit in one["hits"]]
            for one in answer["queries"]
        }
        for way, more in ways.items()
        for answer in [run_verb("search", place.index, place.queries, "-k", str(_FIRST), *more)]
    }
    right = {way: _share(kinds) for way, kinds in found.items()}
    _say(
        f"{len(found['protected'])} queries, views that are not in the album. Of the first "
        f"{_FIRST} hits show the same thing:",
        f"  {right['without protection']:.1f} without protection, {right['protected']:.1f} from "
        "the protected index "
        f"({_FIRST * 19 / 323:.1f} by chance).",
    )
    return {"right": right, "hits": found}


def _share(found: dict[str, list[str]]) -> float:
    """How many of the first hits show what the query shows, on average over queries."""
    return sum(_kind(name) == kind for kind, names in found.items() for name in names) / max(
        1, len(found)
    )


def _words(place: DemoFolder) -> dict[str, Any] | None:
    """By words; None where what words need cannot be fetched."""
    asked = [part for words in _WORDS for part in ("--words", words)]
    _step(4, "Search it by words", f'search {place.index} --words "a cup of coffee"')
    try:
        answer = run_verb("search", place.index, *asked, "-k", str(_FIRST))
    except (MissingData, MissingDependency) as error:
        _say(f"Left out: {error}")
        return None
    found = {one["query"]: [hit["names"][0] for hit in one["hits"]] for one in answer["queries"]}
    for words, names in found.items():
        right = sum(_kind(name) == _WORDS[words] for name in names)
        _say(f"{words:<16} {right:>2} of the first {_FIRST} show it")
    return {"hits": found}


def _tag(place: DemoFolder) -> dict[str, Any] | None:
    """Tags from words alone: a model that has seen no photograph of the album."""
    model = place.out / "tagger.safetensors"
    _step(
        5,
        "Tag it",
        f"tag start {','.join(_TAGS)} --out {model}",
        f"tag apply {model} {place.queries}",
    )
    try:
        run_verb("tag", "start", ",".join(_TAGS), "--out", model)
    except (MissingData, MissingDependency) as error:
        _say(f"Left out: {error}")
        return None
    answers = {
        Path(one["image"]).stem: one["tags"]
        for one in run_verb("tag", "apply", model, place.queries)["answers"]
    }
    right = sum(answers[name] == [name] for name in _TAGS)
    silent = sum(not tags for name, tags in answers.items() if name not in _TAGS)
    _say(
        f"The model knows {len(_TAGS)} words and has seen none of the photographs (ε = 0).",
        f"{right} of {len(_TAGS)} such pictures got their word alone; of "
        f"{len(answers) - len(_TAGS)} others "
        f"{silent} got none.",
    )
    return {"tags": answers}


def _send(place: DemoFolder) -> dict[str, Any] | None:
    """Noisy statistics that a classifier is fitted from, in the place of photographs; once."""
    file = place.out / "album.statistics"
    words = ("send", place.photos, file, "--epsilon", "8", "--encoder", _STATISTICS_ENCODER)
    _step(6, "Send statistics of it, in the place of photographs", " ".join(map(str, words)))
    if file.exists():
        _say("Sent by an earlier run: a second release of the same photographs would cost again.")
        return None
    try:
        sent = run_verb(*words)
    except (MissingData, MissingDependency) as error:
        _say(f"Left out: {error}")
        return None
    except InvalidParameter as error:  # too few photographs: refused before anything is charged
        _say(f"Refused: {error}")
        return None
    guarantee = sent["guarantee"]
    _say(
        f"One noisy sum for each of {len(sent['classes'])} classes: proven "
        f"ε = {guarantee['epsilon']:g}, δ = {guarantee['delta']:g} per photograph and its label.",
        f"A classifier fitted from them is expected to be right {sent['predicted_accuracy']:.0%} "
        "of the time.",
    )
    return {"file": sent["file"], "predicted_accuracy": sent["predicted_accuracy"]}


def _attack(place: DemoFolder) -> ReleaseAudit:
    """The owner attacks what was shared, with the photographs as the truth."""
    from blindsight.app.audit import attack_release

    vault = Path(f"{place.index}.vault")
    _step(7, "Attack it, as its owner can", f"audit {place.index} --vault {vault}")
    with progress_bar("attacking") as progress:
        found = attack_release(
            place.index,
            vault,
            photos=place.photos,
            progress=lambda _, done, total: progress(done, total),
        )
    _say(
        found.answer,
        f"Epsilon {found.epsilon:g} proven, {found.verdict.cells()[5]} measured: "
        f"{found.verdict.word}.",
    )
    return found


def _report(
    place: DemoFolder, found: dict[str, Any], attacked: ReleaseAudit, *, papers: bool, seed: int
) -> list[dict[str, Any]]:
    """The three numbers of every method, then the papers, and the report."""
    from dataclasses import replace

    from blindsight.app.audit import draw_numbers, report_figure

    report = attacked.report()
    verdicts: list[Verdict] = _judged(seed) if papers else []
    lead = [*pictures(place, found), *report.figures]
    rows = [dict(zip(_COLUMNS, _cells(verdict), strict=True)) for verdict in verdicts]
    drawn = (
        [report_figure("Three numbers per method", _NUMBERS, draw_numbers(verdicts), rows)]
        if verdicts
        else []
    )
    page = replace(report, title="An album, protected and attacked", lead=lead, figures=drawn)
    written = page.write(place.out)
    console.print("\n[bold]Three things to look at[/bold]")
    for what in (
        f"{written[0]}: what was made and what an attacker gets, in a browser",
        f"{place.index / 'search.html'}: what the receiver of the release has",
        f"blindsight serve --photos {place.photos}: the same jobs as pages",
    ):
        console.print(f"   {what}", markup=False, soft_wrap=True)
    return [verdict.to_dict() for verdict in (*report.verdicts, *verdicts)]


def _judged(seed: int) -> list[Verdict]:
    from blindsight.app.audit import method_verdicts

    _step(8, "Three numbers per method: claimed, proven, audited", "audit --all")
    with progress_bar("auditing five methods") as progress:
        verdicts = method_verdicts(seed=seed, progress=lambda _, done, total: progress(done, total))
    ours = [verdict for verdict in verdicts if not verdict.published]
    theirs = [verdict for verdict in verdicts if verdict.published]
    show_numbers("ours", ours)
    _step(9, "And what five papers promise")
    show_numbers("as printed", theirs)
    _say(
        "A line shows the setting that an attack got furthest with. In all settings "
        f"{sum(v.refuted for v in theirs)} of {len(theirs)} published claims are refuted; of our "
        f"own, {sum(v.refuted for v in ours)} of {len(ours)} (not refuted is not a proof)."
    )
    return verdicts


def show_numbers(title: str, verdicts: Sequence[Verdict]) -> None:
    """One line per method, in the setting that an attack got furthest with; 80 columns are
    enough.
    """
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in (title, *_COLUMNS[1:]):
        shown.add_column(
            column, no_wrap=column != "claimed", min_width=12 if column == "claimed" else None
        )
    for verdict in _worst(verdicts):
        shown.add_row(*_cells(verdict))
    console.print(shown)


def _cells(verdict: Verdict) -> tuple[str, ...]:
    method, _, unit, claimed, proven, audited, *_ = verdict.cells()
    audited = audited.replace("PSNR in dB", "dB").replace(" recovered", " back")
    return (
        method.removesuffix(" (ours)"),
        unit,
        claimed,
        proven,
        audited,
        "yes" if verdict.refuted else "no",
    )


def _worst(verdicts: Sequence[Verdict]) -> list[Verdict]:
    found: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.method not in found or (verdict.refuted and not found[verdict.method].refuted):
            found[verdict.method] = verdict
    return list(found.values())


def pictures(place: DemoFolder, found: dict[str, Any]) -> list[Figure]:
    """Search results with and without protection, for the report and for the README."""
    import base64

    from blindsight.app.audit import report_figure
    from blindsight.app.hosting import write_file

    titles = (
        "query",
        "first hits without protection",
        "first hits of the protected index, epsilon 8",
    )
    sheet = film(titles, _strips(place, found))
    write_file(place.out / "search.jpg", sheet)
    picture = (
        '<img alt="" style="max-width:100%" '
        f'src="data:image/jpeg;base64,{base64.b64encode(sheet).decode()}">'
    )
    right = found["searched"]["right"]
    caption = (
        f"Of the first {_FIRST} hits {right['without protection']:.1f} show what the query shows "
        "without protection, "
        f"and {right['protected']:.1f} where only noisy codes are searched (mean over "
        f"{len(found['searched']['hits']['protected'])} queries). "
        "The last line is the query that the protected index answers worst. A red frame marks a "
        "wrong hit."
    )
    return [
        report_figure(
            "Search with and without protection",
            caption,
            picture,
            [{"search": k, "of ten": round(v, 2)} for k, v in right.items()],
        )
    ]


def _strips(place: DemoFolder, found: dict[str, Any]) -> list[Strip]:
    import numpy as np
    from PIL import Image

    def read_image(path: Path) -> NDArray[np.uint8]:
        with Image.open(path) as picture:  # one of the album's own files
            return np.asarray(picture.convert("RGB"))

    def tiles(names: Sequence[str], kind: str) -> list[tuple[Any, bool]]:
        return [(read_image(place.photos / name), _kind(name) == kind) for name in names[:_ACROSS]]

    ways = found["searched"]["hits"]
    worst = min(
        ways["protected"],
        key=lambda kind: sum(_kind(name) == kind for name in ways["protected"][kind]),
    )
    return [
        Strip(
            read_image(place.queries / f"{kind}.jpg"),
            [tiles(ways[way][kind], kind) for way in ways],
        )
        for kind in dict.fromkeys((*_SHOWN, worst))
    ]


_TILE, _GAP, _HEAD, _BETWEEN = 88, 5, 30, 26
_INK, _PAPER, _WRONG = "#1d2129", "#ffffff", "#c8324a"


@dataclass(frozen=True)
class Strip:
    """One query: its picture, or the words that were asked for; and hits, each with whether it
    shows what was asked.

    `groups` are the ways to search, each a sequence of (picture, right).
    """

    query: NDArray[np.uint8] | str
    groups: Sequence[Sequence[tuple[NDArray[np.uint8], bool]]]


def film(titles: Sequence[str], strips: Sequence[Strip]) -> bytes:
    """One JPEG, a line per query.

    A wrong hit has a red frame. `titles` stand over the query and the groups.
    """
    from PIL import Image, ImageDraw, ImageFont

    most = [max(len(strip.groups[i]) for strip in strips) for i in range(len(titles) - 1)]
    starts = [
        _GAP,
        *accumulate([_GAP + _TILE + _BETWEEN, *[n * (_TILE + _GAP) + _BETWEEN for n in most]]),
    ]
    size = (starts[-1] - _BETWEEN + _GAP, _HEAD + len(strips) * (_TILE + _GAP) + _GAP)
    sheet = Image.new("RGB", size, _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for title, left in zip(titles, starts, strict=False):
        pen.text((left, 7), title, _INK, font)
    for line, strip in enumerate(strips):
        top = _HEAD + line * (_TILE + _GAP)
        if isinstance(strip.query, str):
            words = strip.query.replace(" ", "\n")
            pen.multiline_text(
                (_GAP + _TILE // 2, top + _TILE // 2),
                words,
                _INK,
                font,
                anchor="mm",
                align="center",
            )
        else:
            sheet.paste(_tile(strip.query), (_GAP, top))
        for group, left in zip(strip.groups, starts[1:], strict=False):
            for place, (pixels, right) in enumerate(group):
                x = left + place * (_TILE + _GAP)
                sheet.paste(_tile(pixels), (x, top))
                if not right:
                    pen.rectangle((x, top, x + _TILE - 1, top + _TILE - 1), outline=_WRONG, width=4)
    held = io.BytesIO()
    sheet.save(held, "JPEG", quality=86)
    return held.getvalue()


def _tile(pixels: Any) -> Image.Image:
    from PIL import Image

    return Image.fromarray(pixels).convert("RGB").resize((_TILE, _TILE), Image.Resampling.LANCZOS)

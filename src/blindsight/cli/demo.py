"""`blindsight demo`: protect, search, tag and attack an album by running the verbs themselves."""

from __future__ import annotations

import importlib.util
import io
import json as text
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, progress_bar
from blindsight.core.errors import InvalidParameter, MissingData, MissingDependency

if TYPE_CHECKING:
    import click
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
    """Add `demo` to the command line."""
    app.command("demo")(demo)


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the album, the release and the report.")
    ] = Path("out"),
    seed: Annotated[int, typer.Option(help="Seed of the attacks on the papers.", min=0)] = 0,
    papers: Annotated[
        bool, typer.Option(help="Attack the five papers' claims too (about a minute).")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Protect an album of photographs, open it as its receiver, search it, tag it, send statistics
    of it and attack it. The report is OUT/report.html.

    Running it again releases and charges no photograph a second time.
    """
    _check_parts()
    if out.exists() and not out.is_dir():
        raise InvalidParameter(f"--out must be a folder, and {out} is a file. Choose another name.")
    console.quiet = json
    try:
        folders = DemoFolder(out)
        results: dict[str, Any] = {
            "protected": _protect(folders),
            "opened": _open(folders),
            "searched": _search(folders),
            "words": (words := _words(folders)),
        }
        # Tags and statistics use the same public words, which are not fetched in vain again.
        with _without_fetching() if words is None else nullcontext():
            results["tagged"] = _tag(folders, words_found=words is not None)
            results["sent"] = _send(folders, words_found=words is not None)
        attacked = _attack(folders)
        results["attacked"] = attacked.to_dict()
        results["numbers"] = _report(folders, results, attacked, papers=papers, seed=seed)
    finally:
        console.quiet = False
    if json:
        emit_json(results)


def _check_parts() -> None:
    """Raise `MissingDependency` if a package that the demo needs is not installed."""
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


@cache
def _command() -> click.Command:
    """All verbs, made of their functions' signatures once and not for each step."""
    from blindsight.cli.main import app

    return typer.main.get_command(app)


def run_verb(*words: str | Path) -> dict[str, Any]:
    """Run a verb in this process, and return its JSON output."""
    output = io.StringIO()
    with redirect_stdout(output):
        _command()([*map(str, words), "--json"], standalone_mode=False)
    return dict(text.loads(output.getvalue()))


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


def _protect(folders: DemoFolder) -> dict[str, Any]:
    """Write the album, grant a budget, and release the codes that were not released before."""
    album = f"{folders.photos}"
    _step(
        1,
        "Protect an album",
        f"budget grant --ledger {folders.out}/budget.db --dataset album --epsilon 8",
        f"protect {album} --out {folders.index} --ledger {folders.out}/budget.db",
    )
    from blindsight.app.labelled_images import album_kinds

    count = write_album(folders)
    budget = folders.out / "budget.db"
    run_verb("budget", "grant", "--ledger", budget, "--dataset", "album", "--epsilon", "8")
    done = run_verb(
        "protect", album, "--out", folders.index, "--ledger", budget, "--dataset", "album"
    )
    proven = done["guarantee"]["epsilon"]
    _say(
        f"{count} views of {len(album_kinds())} photographs, a retina and a tissue slide among "
        "them. Each is stored as one noisy code. Proven: the code changes the odds of any guess "
        f"about its photograph by a factor of at most e^{proven:g} (ε = {proven:g}).",
        f"{done['released']} released now, {done['known']} were released before. Ledger: "
        f"{done['ledger']}.",
        f"Share {folders.index}. Keep {done['vault']} private: it holds the key of the noise and "
        "the names.",
    )
    return {
        "photographs": count,
        "released": done["released"],
        "epsilon": proven,
        "index": done["index"],
    }


def _open(folders: DemoFolder) -> dict[str, object]:
    """Open the release as its receiver does: it is checked before it is used."""
    _step(2, "Open it, as its receiver", f"open {folders.index}")
    opened = run_verb("open", folders.index)
    _say(
        "The signature and every file were checked. Compare its fingerprint with what the owner "
        f"tells you: {opened['fingerprint']}.",
        f"{folders.index / 'search.html'} searches it in any browser, with no network.",
    )
    return {"fingerprint": opened["fingerprint"]}


def write_album(folders: DemoFolder) -> int:
    """Write the built-in album, one folder per photograph; the last view of each becomes a query.

    Returns:
        The number of files in the album.
    """
    from PIL import Image

    from blindsight.app.labelled_images import album_pictures

    pictures = album_pictures()
    last = {name.rpartition("-")[0]: name for name, _ in pictures}
    folders.queries.mkdir(parents=True, exist_ok=True)
    stored = 0
    for name, pixels in pictures:
        kind, _, number = name.rpartition("-")
        is_query = last[kind] == name
        album_path = folders.photos / kind / f"{number}.jpg"
        path = folders.queries / f"{kind}.jpg" if is_query else album_path
        path.parent.mkdir(parents=True, exist_ok=True)
        stored += not is_query
        if not path.exists():
            Image.fromarray(pixels).save(path, quality=92)
    return stored


def _kind(name: str) -> str:
    """Return what a view shows, which is the name of its folder."""
    return Path(name).parent.name


def _search(folders: DemoFolder) -> dict[str, Any]:
    """Search by picture, among the codes and, for comparison, among the photographs."""
    _step(3, "Search it by picture", f"search {folders.index} {folders.queries} -k {_FIRST}")
    ways = {
        "without protection": ("--rerank", str(len(list(folders.photos.glob("*/*"))))),
        "protected": (),
    }
    hits = {
        way: {
            Path(query["query"]).stem: [hit["names"][0] for hit in query["hits"]]
            for query in answer["queries"]
        }
        for way, more in ways.items()
        for answer in [run_verb("search", folders.index, folders.queries, "-k", str(_FIRST), *more)]
    }
    right = {way: _share(kinds) for way, kinds in hits.items()}
    _say(
        f"{len(hits['protected'])} queries, views that are not in the album. So many of the first "
        f"{_FIRST} hits show the same thing, on average:",
        f"  {right['without protection']:.1f} without protection, {right['protected']:.1f} from "
        "the protected index "
        f"({_FIRST * 19 / 323:.1f} by chance).",
    )
    return {"right": right, "hits": hits}


def _share(hits: dict[str, list[str]]) -> float:
    """Return how many of the first hits show what the query shows, on average over queries."""
    return sum(_kind(name) == kind for kind, names in hits.items() for name in names) / max(
        1, len(hits)
    )


def _words(folders: DemoFolder) -> dict[str, Any] | None:
    """Search by words; return None if the files that words need cannot be fetched."""
    options = [part for words in _WORDS for part in ("--words", words)]
    _step(4, "Search it by words", f'search {folders.index} --words "a cup of coffee"')
    try:
        answer = run_verb("search", folders.index, *options, "-k", str(_FIRST))
    except (MissingData, MissingDependency) as error:
        _say(f"Left out: {error}")
        return None
    hits = {
        query["query"]: [hit["names"][0] for hit in query["hits"]] for query in answer["queries"]
    }
    for words, names in hits.items():
        right = sum(_kind(name) == _WORDS[words] for name in names)
        _say(f"{words:<16} {right:>2} of the first {_FIRST} show it")
    return {"hits": hits}


@contextmanager
def _without_fetching() -> Iterator[None]:
    """Switch fetching off for a while, as `--offline` does."""
    before = os.environ.get("BLINDSIGHT_OFFLINE")
    os.environ["BLINDSIGHT_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["BLINDSIGHT_OFFLINE"]
        else:
            os.environ["BLINDSIGHT_OFFLINE"] = before


def _leave_out(error: Exception, words_found: bool) -> None:
    """Say why a step is left out; what step 4 said is not repeated."""
    same = isinstance(error, MissingData) and not words_found
    _say(
        "Left out: it needs the files that step 4 could not find." if same else f"Left out: {error}"
    )


def _tag(folders: DemoFolder, *, words_found: bool) -> dict[str, Any] | None:
    """Tag the queries with a model that was made from words alone."""
    model = folders.out / "tagger.safetensors"
    _step(
        5,
        "Tag it",
        f"tag start {','.join(_TAGS)} --out {model}",
        f"tag apply {model} {folders.queries}",
    )
    try:
        run_verb("tag", "start", ",".join(_TAGS), "--out", model)
    except (MissingData, MissingDependency) as error:
        _leave_out(error, words_found)
        return None
    answers = {
        Path(answer["image"]).stem: answer["tags"]
        for answer in run_verb("tag", "apply", model, folders.queries)["answers"]
    }
    right = sum(answers[name] == [name] for name in _TAGS)
    silent = sum(not tags for name, tags in answers.items() if name not in _TAGS)
    _say(
        f"The model knows {len(_TAGS)} words and has seen none of the photographs (ε = 0).",
        f"{right} of {len(_TAGS)} pictures of these words got exactly the right word; {silent} of "
        f"{len(answers) - len(_TAGS)} other pictures got no word, as they should.",
    )
    return {"tags": answers}


def _send(folders: DemoFolder, *, words_found: bool) -> dict[str, Any] | None:
    """Release noisy statistics, from which others fit a classifier; only in the first run."""
    file = folders.out / "album.statistics"
    words = ("send", folders.photos, file, "--epsilon", "8", "--encoder", _STATISTICS_ENCODER)
    _step(6, "Send statistics of it, instead of photographs", " ".join(map(str, words)))
    if file.exists():
        _say("Sent by an earlier run: a second release of the same photographs would cost again.")
        return None
    try:
        sent = run_verb(*words)
    except (MissingData, MissingDependency) as error:
        _leave_out(error, words_found)
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


def _attack(folders: DemoFolder) -> ReleaseAudit:
    """Attack the release as its owner can, with the photographs as ground truth."""
    from blindsight.app.audit import attack_release

    vault = Path(f"{folders.index}.vault")
    _step(7, "Attack it, as its owner can", f"audit {folders.index} --vault {vault}")
    with progress_bar("attacking") as progress:
        audit = attack_release(
            folders.index,
            vault,
            photos=folders.photos,
            progress=lambda _, done, total: progress(done, total),
        )
    _say(
        audit.answer,
        f"Epsilon {audit.epsilon:g} proven, {audit.verdict.cells()[5]} measured: "
        f"{audit.verdict.word}.",
    )
    return audit


def _report(
    folders: DemoFolder, results: dict[str, Any], attacked: ReleaseAudit, *, papers: bool, seed: int
) -> list[dict[str, Any]]:
    """Audit the methods and the papers, and write the report."""
    from dataclasses import replace

    from blindsight.app.audit import draw_numbers, report_figure

    report = attacked.report()
    verdicts: list[Verdict] = _judged(seed) if papers else []
    lead = [*pictures(folders, results), *report.figures]
    rows = [dict(zip(_COLUMNS, _cells(verdict), strict=True)) for verdict in verdicts]
    drawn = (
        [report_figure("Three numbers per method", _NUMBERS, draw_numbers(verdicts), rows)]
        if verdicts
        else []
    )
    page = replace(report, title="An album, protected and attacked", lead=lead, figures=drawn)
    written = page.write(folders.out)
    console.print("\n[bold]Three things to look at[/bold]")
    for line in (
        f"{written[0]}: what was made and what an attacker gets, in a browser",
        f"{folders.index / 'search.html'}: what the receiver of the release has",
        f"{program()} serve --photos {folders.photos}: the same jobs in a browser",
    ):
        console.print(f"   {line}", markup=False, soft_wrap=True)
    return [verdict.to_dict() for verdict in (*report.verdicts, *verdicts)]


def program() -> str:
    """The command by which this program can be started again from here: its name where the shell
    finds it, else its path.
    """
    started = Path(sys.argv[0])
    if started.name != "blindsight" or shutil.which("blindsight"):
        return "blindsight"
    return os.path.relpath(started)


def _judged(seed: int) -> list[Verdict]:
    from blindsight.app.audit import method_verdicts

    _step(8, "Three numbers per method: claimed, proven, audited", "audit --all")
    with progress_bar("auditing five methods") as progress:
        verdicts = method_verdicts(seed=seed, progress=lambda _, done, total: progress(done, total))
    own = [verdict for verdict in verdicts if not verdict.published]
    published = [verdict for verdict in verdicts if verdict.published]
    show_numbers("ours", own)
    _step(9, "And what five papers promise")
    show_numbers("as printed", published)
    _say(
        "Each line shows the setting in which an attack got furthest. Over all settings, "
        f"{sum(v.refuted for v in published)} of {len(published)} published claims are refuted; of "
        f"our own, {sum(v.refuted for v in own)} of {len(own)} (not refuted is not a proof)."
    )
    return verdicts


def show_numbers(title: str, verdicts: Sequence[Verdict]) -> None:
    """Print one line per method, for the setting in which the attack got furthest.

    The table fits into 80 columns.
    """
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in (title, *_COLUMNS[1:]):
        grid.add_column(
            column, no_wrap=column != "claimed", min_width=12 if column == "claimed" else None
        )
    for verdict in _worst(verdicts):
        grid.add_row(*_cells(verdict))
    console.print(grid)


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
    worst: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.method not in worst or (verdict.refuted and not worst[verdict.method].refuted):
            worst[verdict.method] = verdict
    return list(worst.values())


def pictures(folders: DemoFolder, results: dict[str, Any]) -> list[Figure]:
    """Return a figure of search results with and without protection, and write search.jpg."""
    import base64

    from blindsight.app.audit import report_figure
    from blindsight.app.hosting import write_file

    titles = (
        "query",
        "first hits without protection",
        "first hits of the protected index, epsilon 8",
    )
    sheet = film(titles, _strips(folders, results))
    write_file(folders.out / "search.jpg", sheet)
    picture = (
        '<img alt="" style="max-width:100%" '
        f'src="data:image/jpeg;base64,{base64.b64encode(sheet).decode()}">'
    )
    right = results["searched"]["right"]
    caption = (
        f"Of the first {_FIRST} hits {right['without protection']:.1f} show what the query shows "
        "without protection, "
        f"and {right['protected']:.1f} where only noisy codes are searched (mean over "
        f"{len(results['searched']['hits']['protected'])} queries). "
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


def _strips(folders: DemoFolder, results: dict[str, Any]) -> list[Strip]:
    import numpy as np
    from PIL import Image

    def read_image(path: Path) -> NDArray[np.uint8]:
        with Image.open(path) as picture:  # one of the album's own files
            return np.asarray(picture.convert("RGB"))

    def tiles(names: Sequence[str], kind: str) -> list[tuple[Any, bool]]:
        return [
            (read_image(folders.photos / name), _kind(name) == kind) for name in names[:_ACROSS]
        ]

    ways = results["searched"]["hits"]
    worst = min(
        ways["protected"],
        key=lambda kind: sum(_kind(name) == kind for name in ways["protected"][kind]),
    )
    return [
        Strip(
            read_image(folders.queries / f"{kind}.jpg"),
            [tiles(ways[way][kind], kind) for way in ways],
        )
        for kind in dict.fromkeys((*_SHOWN, worst))
    ]


_TILE, _GAP, _HEAD, _BETWEEN = 88, 5, 30, 26
_INK, _PAPER, _WRONG = "#1d2129", "#ffffff", "#c8324a"


@dataclass(frozen=True)
class Strip:
    """One query with its hits.

    Parameters:
        query: the query's picture, or its words.
        groups: for each way to search, the hits as pairs (picture, whether it is a right hit).
    """

    query: NDArray[np.uint8] | str
    groups: Sequence[Sequence[tuple[NDArray[np.uint8], bool]]]


def film(titles: Sequence[str], strips: Sequence[Strip]) -> bytes:
    """Draw the queries and their hits, one line per query; a wrong hit has a red frame.

    Parameters:
        titles: the headings of the query and of each group of hits.
        strips: the lines.

    Returns:
        The picture as JPEG.
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
    for title, x in zip(titles, starts, strict=False):
        pen.text((x, 7), title, _INK, font)
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
        for group, x in zip(strip.groups, starts[1:], strict=False):
            for column, (pixels, right) in enumerate(group):
                tile_x = x + column * (_TILE + _GAP)
                sheet.paste(_tile(pixels), (tile_x, top))
                if not right:
                    frame = (tile_x, top, tile_x + _TILE - 1, top + _TILE - 1)
                    pen.rectangle(frame, outline=_WRONG, width=4)
    file = io.BytesIO()
    sheet.save(file, "JPEG", quality=86)
    return file.getvalue()


def _tile(pixels: Any) -> Image.Image:
    from PIL import Image

    return Image.fromarray(pixels).convert("RGB").resize((_TILE, _TILE), Image.Resampling.LANCZOS)

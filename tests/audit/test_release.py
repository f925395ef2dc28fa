"""A release is attacked with its owner's photos as the truth, and what is said of it follows from
what was measured.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight.audit import release as module
from blindsight.audit.engine.outputs import frozen
from blindsight.audit.release import (
    ReleaseAudit,
    album,
    audit_release,
    audit_sketches,
    audit_tags,
    sketches_and_tags,
)
from blindsight.audit.release.album import read_album
from blindsight.audit.target import audit_file
from blindsight.cli.main import app
from blindsight.core.codes import to_codes
from blindsight.core.errors import InvalidData
from blindsight.core.storage import seal_json
from blindsight.data.sources import content_digest
from blindsight.index import HammingIndex
from blindsight.privacy import Guarantee
from blindsight.privacy.accounting import Planned
from blindsight.privacy.mechanisms import KaryResponse
from blindsight.privacy.vault import Vault
from blindsight.sketching import networks

pytestmark = pytest.mark.usefixtures("same_noise")

KINDS = 6


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Ninety pictures of six kinds, each kind a pattern of its own with some noise on it, a folder
    per kind.
    """
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for kind in range(KINDS):
        pattern = np.kron(rng.integers(0, 200, (4, 4, 3)), np.ones((6, 6, 1)))
        (folder / f"kind{kind}").mkdir()
        for number in range(15):
            picture = np.clip(pattern + rng.normal(20, 25, pattern.shape), 0, 255).astype(np.uint8)
            Image.fromarray(picture).save(folder / f"kind{kind}" / f"holiday-{kind}-{number}.png")
    return folder


@pytest.fixture(scope="module")
def made(photos, tmp_path_factory):
    """Releases of these photos, by epsilon, each made once and always the same."""
    home, kept = tmp_path_factory.mktemp("releases"), {}

    def make(epsilon: float, *more: str) -> Path:
        if (epsilon, more) not in kept:
            out = home / f"out{len(kept)}"
            words = [
                "protect",
                photos,
                "--out",
                out,
                "--epsilon",
                epsilon,
                "--features",
                "pixels",
                "--no-page",
                *more,
            ]
            with frozen(zlib.crc32(f"{epsilon} {more} 1".encode())):
                done = CliRunner().invoke(app, [str(word) for word in words])
            assert done.exit_code == 0, done.output
            kept[epsilon, more] = out
        return kept[epsilon, more]

    return make


@pytest.fixture(autouse=True, scope="module")
def quick():
    """One other budget, and pictures rebuilt at half the size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_EPSILONS", (2.0,))
        patch.setattr(album, "_THUMBNAIL", 16)
        yield


@cache
def attacked(out: Path, **options) -> ReleaseAudit:
    with frozen(0):
        return audit_release(out, out.with_name(out.name + ".vault"), trials=2000, **options)


def test_a_small_budget_hides_the_photo_and_a_large_one_does_not(made) -> None:
    quiet, loud = attacked(made(1.0)), attacked(made(24.0))
    for found in (quiet, loud):
        assert found.singled.n == 90
        assert not found.refuted
        assert found.guessed is not None
        assert found.guessed.kinds == KINDS
        assert found.guessed.source == "the folders they lie in"
    assert quiet.singled.top1 < 3 * quiet.singled.chance
    assert loud.singled.top1 == pytest.approx(loud.singled.plain_top1, abs=0.02)
    assert loud.guessed.share > 0.8 > quiet.guessed.share
    assert loud.searched.hits > quiet.searched.hits
    assert loud.rebuilt.psnr > quiet.rebuilt.psnr


def test_recovery_as_good_as_from_plain_codes_is_bad_news_whatever_epsilon_says(made) -> None:
    """The same audit with other figures: what is said follows from them and from nothing else."""
    audit = attacked(made(24.0))
    guessed, rebuilt, linked = audit.guessed, audit.rebuilt, audit.singled
    assert guessed is not None

    def advice(share: float) -> str:
        """With this share of what codes without noise would give."""
        told = guessed.luck + share * (0.9 - guessed.luck)
        found = linked.chance + share * (0.9 - linked.chance)
        measured = dataclasses.replace(
            audit.measured,
            guessed=dataclasses.replace(guessed, share=told, plain=0.9),
            linked=dataclasses.replace(linked, top1=found, plain_top1=0.9),
        )
        back = dataclasses.replace(rebuilt, psnr=10 + share, mean=10, plain=11)
        return " ".join(dataclasses.replace(audit, measured=measured, rebuilt=back).advice())

    assert "guessed in 90 of 100 cases, as well as from codes without noise" in advice(1.0)
    assert "they are reconstructed as well as from codes without noise" in advice(1.0)
    assert "nearly as often as from codes without noise (90), whatever epsilon says" in advice(1.0)
    assert "without noise" not in advice(0.5)


def test_flipped_bits_are_attacked_too(made) -> None:
    found = attacked(made(16.0, "--method", "phashing-itq", "--bits", "16"))
    assert not found.refuted
    assert found.singled.chance < found.singled.top1 <= found.singled.plain_top1 + 0.05


@pytest.mark.parametrize(
    ("shift", "says"),
    [(0, "where the promise says"), (1, "photos share their noise")],
    ids=["no noise", "one noise"],
)
def test_codes_whose_noise_is_not_what_is_stated_are_refuted(
    made, tmp_path, shift: int, says: str
) -> None:
    """The true cells in the place of those that epsilon 1 drew; and the same change to all of
    them.
    """
    out = tmp_path / "out"
    shutil.copytree(made(1.0), out)
    shutil.copytree(f"{made(1.0)}.vault", f"{out}.vault")
    with HammingIndex.open(out / "codes.index") as index:
        options = {"photos": None, "most": 90, "rng": np.random.default_rng(0)}
        seen = read_album(out, Path(f"{out}.vault"), step=lambda done, total, what: None, **options)
        book = seen.encoder.codebook
        index.add(to_codes((book.assign(seen.rows) + shift) % book.k, book.k), list(seen.ids))
    found = attacked(out)
    assert found.refuted
    assert says in " ".join(found.problems)
    assert found.answer.startswith("Do not share this")


def test_names_in_a_release_are_found(made, tmp_path) -> None:
    out = tmp_path / "out"
    shutil.copytree(made(1.0), out)
    shutil.copytree(f"{made(1.0)}.vault", f"{out}.vault")
    (out / "readme.txt").write_text("see holiday-3-7.png")
    assert "the names of 1 photos stand in the release" in attacked(out).problems


def test_the_vault_must_be_the_releases_own(made) -> None:
    with pytest.raises(InvalidData, match="is not the vault of"):
        audit_release(made(1.0), f"{made(24.0)}.vault")


def test_labels_of_ones_own_are_used(made, photos, tmp_path) -> None:
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    table = tmp_path / "labels.csv"
    table.write_text("name,even\n" + "".join(f"{name},{int(name[4]) % 2}\n" for name in names))
    found = attacked(made(1.0), labels=f"{table}:even")
    assert found.guessed is not None
    assert (found.guessed.kinds, found.guessed.source) == (2, "column even of your table")
    with pytest.raises(InvalidData, match="no column"):
        attacked(made(1.0), labels=f"{table}:odd")


def test_the_command_prints_lines_that_fit_and_writes_a_page(made, tmp_path) -> None:
    out = made(1.0)
    words = ["audit", str(out), "--vault", f"{out}.vault", "--out", str(tmp_path / "report")]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    printed = done.output[: done.output.index("wrote ")]
    assert max(map(len, printed.splitlines())) <= 80
    assert printed.count("Not refuted:") == 1
    page = (tmp_path / "report" / "report.html").read_text()
    assert (
        page.index("of 100 cases") < page.index("<figure>") < page.index("Claimed, proven, audited")
    )
    assert "data:image/png;base64," in page
    assert "holiday" not in page
    measured = json.loads((tmp_path / "report" / "report.json").read_text())["measured"]
    assert measured["looked_at"] == 90


def test_a_codebook_is_audited_from_its_file_alone(made) -> None:
    for path in (made(1.0), made(1.0) / "codebook.safetensors", made(1.0) / "codes.index"):
        found = audit_file(path, trials=20_000)
        assert found.verdict is not None
        assert 0 < found.verdict.audited.epsilon <= 1.0


def test_sketches_are_attacked_with_the_photos_behind_them(photos, tmp_path) -> None:
    sent, page = tmp_path / "sent.sketches", tmp_path / "report"
    done = CliRunner().invoke(app, ["sketch", str(photos), str(sent), "--grey", "--q", "Q1"])
    assert done.exit_code == 0, done.output
    with pytest.MonkeyPatch.context() as patch:
        # A quarter of the tiles at each step, and two steps: whether the network attacks is asked.
        patch.setattr(networks, "VALUES", 1 << 13)
        patch.setattr(sketches_and_tags, "_STEPS", 2)
        words = ["audit", str(sent), "--photos", str(photos), "--out", str(page)]
        done = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    found = json.loads((page / "report.json").read_text())
    rows = {row["from"]: float(row["PSNR in dB"]) for row in found["figures"][0]["rows"]}
    assert {"posterior mean", "smoothing", "denoising", "network", "the mean photo"} <= rows.keys()
    assert max(rows.values()) > rows["the mean photo"] + 1, "a loud sketch shows the photo"
    assert "look at the pictures" in " ".join(found["advice"])
    assert "your photos" in (page / "report.html").read_text()
    with pytest.raises(InvalidData, match="not its photos"):
        audit_sketches(sent, photos / "kind0")


def _tags(photos, folder: Path, epsilon: float) -> tuple[Path, Path]:
    """What the workbench publishes: one tag of each photo, under its id, and the promise beside."""
    vault, mechanism = (
        Vault.create(folder / "vault"),
        KaryResponse(epsilon=epsilon, k=KINDS, unit="record"),
    )
    files = sorted(photos.rglob("*.png"))
    records = [vault.record_of(content_digest(path.read_bytes())) for path in files]
    told = mechanism.release(
        np.array([int(path.parent.name[-1]) for path in files]), rng=np.random.default_rng(0)
    )
    guarantee = Guarantee(releases=(Planned(what="tag", mechanism=mechanism),), model="local")
    (folder / "tags.csv").write_text(
        "photo,tag\n" + "".join(f"{r},k{t}\n" for r, t in zip(records, told, strict=True))
    )
    (folder / "guarantee.json").write_bytes(seal_json(json.loads(guarantee.to_json())))
    return folder / "tags.csv", folder / "vault"


def test_published_tags_are_attacked_with_what_the_photos_show(photos, tmp_path) -> None:
    for name, epsilon in (("loud", 9.0), ("quiet", 0.1)):
        (tmp_path / name).mkdir()
        table, vault = _tags(photos, tmp_path / name, epsilon)
        found = audit_tags(table, vault, photos, trials=2000)
        shown, row, _ = found.figures[0].rows
        share, top = (float(each["shared"].rstrip("%")) / 100 for each in (shown, row))
        assert not found.refuted
        assert found.verdicts[0].audited.epsilon < epsilon
        if name == "loud":  # fifteen of a kind share a tag
            assert share > 0.95 and abs(top - 1 / 15) < 0.01
            assert "smaller epsilon" in found.advice()[0]
        else:
            # 45 guesses at 1 of 6: above 0.55 with a chance below 1e-6
            assert share < 0.55 and not found.advice()


def test_names_in_published_tags_are_found_and_the_command_prints(photos, tmp_path) -> None:
    table, vault = _tags(photos, tmp_path, 4.0)
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    rows = [line.partition(",")[2] for line in table.read_text().splitlines()[1:]]
    table.write_text(
        "photo,tag\n" + "".join(f"{n},{t}\n" for n, t in zip(names, rows, strict=True))
    )
    words = ["audit", str(tmp_path), "--vault", str(vault), "--photos", str(photos)]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert done.exit_code == 1, done.output
    assert "the names of 90 photos" in " ".join(done.output.split())
    assert max(map(len, done.output.splitlines())) <= 80
    with pytest.raises(InvalidData, match="only 0 photos"):
        audit_tags(table, vault, vault)

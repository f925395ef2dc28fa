"""Vectors that were computed elsewhere, through protect and search, in Python and as a command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import blindsight
from blindsight.app.protect import protect
from blindsight.app.search import search
from blindsight.cli.main import app
from blindsight.core.errors import BudgetExceeded, HostileFile, InvalidData, InvalidParameter
from blindsight.encoders import Embeddings
from blindsight.privacy import Cost, Ledger, Vault

KINDS, WIDTH = 12, 24
CENTRES = np.random.default_rng(0).normal(size=(KINDS, WIDTH)).astype(np.float32)


def rows(count: int, seed: int) -> np.ndarray:
    """Vectors around twelve centres, the kind of row i being i modulo twelve."""
    noise = np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)
    return CENTRES[np.arange(count) % KINDS] + 0.2 * noise


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    private, public = tmp_path / "scans.npz", tmp_path / "public.npy"
    ids = np.array([f"scan-{number:03}" for number in range(120)])
    np.savez(private, vectors=rows(120, 1), ids=ids)
    np.save(public, rows(600, 2))
    return private, public


def test_three_lines_of_python_protect_and_search_vectors(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = files
    release = tmp_path / "release"
    made = blindsight.protect(
        release=release, embeddings=private, public_embeddings=public, epsilon=12, seed=1
    )
    hits = blindsight.search(release, vector=rows(12, 3)[5]).hits
    assert made.counts.released == 120 and made.recipe.identity == {
        "kind": "embeddings",
        "name": "scans",
        "dimensions": WIDTH,
    }
    names = [hit.names[0] for hit in hits[:5]]
    assert all(int(name.removeprefix("scan-")) % KINDS == 5 for name in names)
    assert not (made.vault / "vectors.npy").exists()  # the copy is gone
    shared = b"".join(path.read_bytes() for path in release.iterdir())
    assert b"scan-" not in shared and str(public).encode() not in shared


def test_one_command_protects_vectors_and_one_searches_them(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = files
    release, query = tmp_path / "release", tmp_path / "query.npy"
    np.save(query, rows(12, 3)[5:6])
    words = ["--embeddings", private, "--public-embeddings", public, "--epsilon", 12]
    done = CliRunner().invoke(app, ["protect", *map(str, [*words, "--out", release])])
    assert done.exit_code == 0 and "120 vectors released" in done.output
    shown = CliRunner().invoke(app, ["search", str(release), "--vector", str(query), "-k", "3"])
    assert shown.exit_code == 0 and "scan-" in shown.output
    np.save(query, rows(12, 3)[5])  # one vector without a second dimension
    again = CliRunner().invoke(app, ["search", str(release), "--vector", str(query), "-k", "3"])
    assert again.output == shown.output
    opened = CliRunner().invoke(app, ["open", str(release)])
    listed = CliRunner().invoke(app, ["index", "show", str(release)])
    assert "120 protected vectors" in " ".join(opened.output.split())
    assert "one per vector" in " ".join(listed.output.split())
    for output in (done.output, shown.output, opened.output, listed.output):
        assert "photo" not in output.lower() and "image" not in output


@pytest.mark.parametrize("suffix", ["npy", "npz", "parquet"])
def test_a_file_is_released_once_whatever_its_form(
    files: tuple[Path, Path], tmp_path: Path, suffix: str
) -> None:
    private, public = files
    vectors = np.load(private)["vectors"]
    again = tmp_path / f"again.{suffix}"
    if suffix == "npy":
        np.save(again, vectors.astype(np.float64))
    elif suffix == "npz":
        np.savez(again, vectors=vectors, ids=np.arange(120))
    else:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        table = pa.table({"id": [str(i) for i in range(120)], "vectors": vectors.tolist()})
        parquet.write_table(table, again)
    release, options = tmp_path / "release", {"public_embeddings": public, "model": "mine"}
    first = protect(release=release, embeddings=private, **options)
    codes = (release / "codes.index").read_bytes()
    second = protect(release=release, embeddings=again, **options)
    assert (first.counts.released, second.counts.released) == (120, 0)
    assert (release / "codes.index").read_bytes() == codes


def test_vectors_are_charged_once_and_a_refused_charge_releases_nothing(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = files
    place = str(tmp_path / "ledger.db")
    Ledger(place, dataset="scans").grant(Cost(epsilon=8.0, unit="record"))
    release, options = tmp_path / "release", {"public_embeddings": public, "ledger": place}
    with pytest.raises(BudgetExceeded):
        protect(release=release, embeddings=private, epsilon=9, **options)
    assert not release.exists()
    assert "charged to scans" in protect(release=release, embeddings=private, **options).charged
    assert "earlier run" in protect(release=release, embeddings=private, **options).charged


def test_equal_vectors_share_a_code_and_persons_have_a_bound(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    public, twice = files[1], tmp_path / "twice.npz"
    vectors = np.concatenate([rows(4, 1), rows(4, 1)])
    np.savez(twice, vectors=vectors, ids=np.array([f"{p}/{i}" for p in "ab" for i in range(4)]))
    made = protect(release=tmp_path / "all", embeddings=twice, public_embeddings=public)
    assert (made.counts.stored, made.counts.copies) == (4, 4)
    assert len({photo.record for photo in Vault(made.vault).photos().values()}) == 4
    people = protect(
        release=tmp_path / "people", embeddings=twice, public_embeddings=public, people="folder"
    )
    assert people.counts.stored == 1 and people.guarantee.also  # both are on every vector


def test_what_is_protected_is_not_public(files: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = files
    shared = np.load(public)
    shared[17] = np.load(private)["vectors"][3]
    np.save(tmp_path / "shared.npy", shared)
    for taken in (private, tmp_path / "shared.npy"):
        with pytest.raises(InvalidData, match="what is protected is not public"):
            protect(release=tmp_path / "release", embeddings=private, public_embeddings=taken)
    assert not (tmp_path / "release").exists()


def test_another_model_is_refused_by_name_and_by_length(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = files
    release = tmp_path / "release"
    protect(release=release, embeddings=private, public_embeddings=public, model="chest-1")
    with pytest.raises(InvalidParameter, match="chest-1"):
        protect(release=release, embeddings=private, public_embeddings=public, model="chest-2")
    with pytest.raises(InvalidParameter, match=r"'chest-1'.*'chest-2'"):
        search(release, vector=rows(1, 0), encoder=Embeddings(private, name="chest-2"))
    with pytest.raises(InvalidParameter, match=f"must have {WIDTH} numbers"):
        search(release, vector=np.ones(7))
    np.save(tmp_path / "narrow.npy", np.ones((300, 7), np.float32))
    with pytest.raises(InvalidData, match="one model"):
        protect(
            release=tmp_path / "other",
            embeddings=private,
            public_embeddings=tmp_path / "narrow.npy",
        )


def test_vectors_where_a_path_is_meant_are_told_the_parameter(tmp_path: Path) -> None:
    vectors, release = rows(120, 1), tmp_path / "release"
    with pytest.raises(InvalidParameter, match=r"got ndarray.*embeddings="):
        protect(vectors, release)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match=r"got ndarray.*numpy\.save"):
        protect(release=release, embeddings=vectors, public_embeddings=vectors)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match=r"got float32.*vector="):
        search(release, vectors[0])  # type: ignore[arg-type]
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("a,b,1\na,c,0\n")
    with pytest.raises(InvalidParameter, match=r"file of vectors.*encoder="):
        blindsight.learn_metric(pairs, features=tmp_path / "clip.npz", out=tmp_path / "metric")
    assert not release.exists()


def test_mistakes_are_named_before_anything_is_written(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = files
    release = tmp_path / "release"
    with pytest.raises(InvalidParameter, match="--public-embeddings"):
        protect(release=release, embeddings=private)
    with pytest.raises(InvalidParameter, match="one of the two"):
        protect(tmp_path, release, embeddings=private)
    with pytest.raises(InvalidParameter, match="computed already"):
        protect(release=release, embeddings=private, public_embeddings=public, encoder="lite0")
    np.savez(tmp_path / "ids.npz", vectors=rows(2, 0), ids=np.array(["a", "a"]))
    with pytest.raises(InvalidData, match="occurs twice"):
        protect(release=release, embeddings=tmp_path / "ids.npz", public_embeddings=public)
    broken = rows(3, 0)
    broken[1, 0] = np.nan
    np.save(tmp_path / "nan.npy", broken)
    with pytest.raises(HostileFile, match="not finite"):
        protect(release=release, embeddings=tmp_path / "nan.npy", public_embeddings=public)
    assert not release.exists() and not Path(f"{release}.vault").exists()


def test_words_search_vectors_through_a_file_of_text_vectors(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = files
    texts, release = tmp_path / "texts.npz", tmp_path / "release"
    names = [f"kind {number}" for number in range(KINDS)]
    np.savez(texts, vectors=CENTRES, ids=np.array(names))
    vectors = Embeddings(private, name="mine", texts=texts)
    protect(release=release, embeddings=vectors, public_embeddings=public, epsilon=12, seed=1)
    hits = search(release, text="kind 7", text_embeddings=texts, k=4).hits
    assert all(int(hit.names[0].removeprefix("scan-")) % KINDS == 7 for hit in hits)
    with pytest.raises(InvalidParameter, match="no entry 'dog'"):
        search(release, text="dog", text_embeddings=texts)
    with pytest.raises(InvalidParameter, match="--vector"):
        search(release, text="kind 7")


def test_what_is_at_chance_is_not_sold_without_a_word(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = files
    release, ledger = tmp_path / "release", tmp_path / "budget.db"
    options = {"embeddings": private, "public_embeddings": public, "ledger": ledger}
    with pytest.raises(InvalidParameter, match=r"little more than chance.*--accept-chance"):
        protect(release=release, epsilon=0.2, **options)
    assert not release.exists() and not ledger.exists()
    expected = protect(
        release=release,
        embeddings=private,
        public_embeddings=public,
        epsilon=0.2,
        accept_chance=True,
    ).expected
    assert expected is not None and expected.at_chance and expected.gain < 1.5
    good = protect(
        release=tmp_path / "good", epsilon=8, check_first=True, **options | {"ledger": None}
    )
    assert good.expected is not None and good.expected.basis == "vectors of yours"
    assert not good.expected.at_chance and "use" in good.sentences()[0]

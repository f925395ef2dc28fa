"""What a hospital's data scientist reads on the command line, on pydicom's test files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from blindsight.cli import main

pydicom = pytest.importorskip("pydicom")
OWN = Path(pydicom.__file__).parent / "data" / "test_files"
WORDS = ("--encoder", "pixels", "--accept-chance", "--people", "dicom", "--most", "1")


def run(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main.app, list(words))


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `protect` prints for two patients, a file without a picture and one of 12-bit JPEG."""
    folder = tmp_path_factory.mktemp("ward")
    (folder / "scans").mkdir()
    for name in ("CT_small.dcm", "MR_small.dcm", "rtplan.dcm", "JPGExtended.dcm"):
        shutil.copy(OWN / name, folder / "scans" / name)
    ledger = ("--ledger", str(folder / "b.db"), "--dataset", "ward")
    granted = run("budget", "grant", *ledger, "--epsilon", "8", "--unit", "person")
    assert granted.exit_code == 0
    made = run("protect", str(folder / "scans"), "--out", str(folder / "out"), *WORDS, *ledger)
    assert made.exit_code == 0, made.output
    return " ".join(made.output.split())


def test_a_budget_per_person_is_charged_and_promised_per_person(protected: str) -> None:
    assert "Ledger: ε = 8 per person (replace one) charged to ward." in protected
    assert "odds change by at most e^8; ε = 8 per person (replace one)" in protected


def test_a_file_that_is_left_out_is_named_once_with_the_reason(protected: str) -> None:
    assert "Left out: rtplan.dcm is a DICOM file without a picture." in protected
    assert "compressed as JPEG Extended (Process 2 and 4)" in protected
    assert "cannot be read: " not in protected


def test_a_vector_without_an_id_is_called_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("scans.npy", rng.normal(size=(120, 8)))
    np.save("public.npy", rng.normal(size=(200, 8)))
    np.save("query.npy", rng.normal(size=8))
    np.save("queries.npy", rng.normal(size=(2, 8)))
    words = ("--embeddings", "scans.npy", "--public-embeddings", "public.npy", "--model", "m")
    assert run("protect", *words, "--out", "out", "--accept-chance").exit_code == 0
    assert "query.npy: 12 hits" in run("search", "out", "--vector", "query.npy").output
    assert "queries.npy, row 1: 12 hits" in run("search", "out", "--vector", "queries.npy").output

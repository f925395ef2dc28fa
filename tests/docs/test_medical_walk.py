"""The walk of docs/tasks/medical.md on pydicom's test images: DICOM files to vectors by an ONNX
model of the user's, to a protected index that is searched.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from app.test_encoders import tower
from blindsight.app.encoders import check_encoder
from blindsight.app.protect import protect
from blindsight.app.search import search
from blindsight.core.errors import BlindsightError, InvalidParameter
from blindsight.data import read_image
from blindsight.data.reading import patient_of
from blindsight.encoders import OnnxEncoder
from blindsight.encoders.public_pictures import built_in_images
from blindsight.privacy import Vault

pydicom = pytest.importorskip("pydicom")
OWN = Path(pydicom.__file__).parent / "data" / "test_files"


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of pydicom's test files that hold a picture."""
    folder = tmp_path_factory.mktemp("scans")
    for path in sorted(OWN.glob("*.dcm")):
        try:
            read_image(path)
        except BlindsightError:
            continue  # plans, reports and damaged files hold no picture
        shutil.copy(path, folder / path.name)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tower(tmp_path / "chest-model", 0)


def public_vectors(model: OnnxEncoder, file: Path) -> Path:
    pictures = built_in_images(240, 64)
    np.save(file, model.images(np.stack([model.prepare(picture) for picture in pictures])))
    return file


def test_dicom_files_become_a_protected_index_through_a_model_of_one_s_own(
    scans: Path, model: Path, tmp_path: Path
) -> None:
    assert check_encoder(model).good
    public = public_vectors(OnnxEncoder(model), tmp_path / "public.npy")
    made = protect(
        scans,
        tmp_path / "release",
        encoder=model,
        public_embeddings=public,
        people="dicom",
        max_per_person=50,
        epsilon=20,
        files=[path.name for path in scans.iterdir() if _patient(path)],
        seed=1,
    )
    assert made.counts.stored >= 10 and made.guarantee.also[0].unit == "person"
    shared = b"".join(path.read_bytes() for path in (tmp_path / "release").iterdir())
    for name, photo in Vault(made.vault).photos().items():
        patient = _patient(scans / name)
        assert name.encode() not in shared and photo.person
        assert len(patient) < 6 or patient.encode() not in shared
    hits = search(tmp_path / "release", scans / "CT_small.dcm", encoder=model, vault=made.vault)
    assert "CT_small.dcm" in {name for hit in hits.hits for name in hit.names}


def test_the_same_vectors_can_be_computed_first_and_protected_without_the_model(
    scans: Path, model: Path, tmp_path: Path
) -> None:
    encoder = OnnxEncoder(model)
    names = sorted(path.name for path in scans.iterdir())
    vectors = encoder.images(np.stack([encoder.read(scans / name) for name in names]))
    np.savez(tmp_path / "scans.npz", vectors=vectors, ids=np.array(names))
    made = protect(
        release=tmp_path / "release",
        embeddings=tmp_path / "scans.npz",
        public_embeddings=public_vectors(encoder, tmp_path / "public.npy"),
        model="chest-model",
        epsilon=20,
        seed=1,
    )
    query = vectors[names.index("CT_small.dcm")]
    hits = search(tmp_path / "release", vector=query, vault=made.vault).hits
    assert "CT_small.dcm" in {name for hit in hits for name in hit.names}
    with pytest.raises(InvalidParameter, match="search with a vector of that model"):
        search(tmp_path / "release", scans / "CT_small.dcm")


def _patient(path: Path) -> str:
    try:
        return patient_of(path) or ""
    except BlindsightError:
        return ""

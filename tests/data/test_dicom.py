"""DICOM and deep grey: seen as a doctor sees them, and nothing but pixels comes along."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight.core.errors import HostileFile, MissingDependency
from blindsight.data import load_folder, read_image
from blindsight.data.formats.dicom import decode_dicom, is_dicom, patient_of

pydicom = pytest.importorskip("pydicom")


def _file(pixels: np.ndarray, **fields: object) -> bytes:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = SecondaryCaptureImageStorage, generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.Rows, dataset.Columns = pixels.shape[-2:]
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit, dataset.PixelRepresentation = 15, 0
    if pixels.ndim == 3:
        dataset.NumberOfFrames = len(pixels)
    for name, value in fields.items():
        setattr(dataset, name, value)
    dataset.PixelData = pixels.astype("<u2").tobytes()
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


RAMP = np.arange(64, dtype=np.uint16).reshape(8, 8) * 60


def test_the_window_decides_what_is_seen() -> None:
    whole = decode_dicom(_file(RAMP))
    assert whole[0, 0] == 0 and whole[-1, -1] == 255
    narrow = decode_dicom(_file(RAMP, WindowCenter=600, WindowWidth=400))
    assert (narrow == 255).sum() > (whole == 255).sum()
    shifted = decode_dicom(_file(RAMP, RescaleSlope=2, RescaleIntercept=-1024, WindowCenter=176, WindowWidth=800))
    np.testing.assert_allclose(shifted.astype(int), narrow.astype(int), atol=1)


def test_monochrome1_is_turned_round_and_of_several_frames_the_middle_one_is_taken() -> None:
    assert decode_dicom(_file(RAMP, PhotometricInterpretation="MONOCHROME1"))[0, 0] == 255
    frames = np.stack([RAMP, RAMP[::-1], RAMP])
    np.testing.assert_array_equal(decode_dicom(_file(frames)), decode_dicom(_file(RAMP[::-1])))


def test_a_patient_is_known_by_a_hash_and_nothing_else_comes_along() -> None:
    named = _file(RAMP, PatientID="0815", PatientName="Mueller^Anna", PatientBirthDate="19610101")
    again = _file(RAMP[::-1], PatientID="0815 ", PatientName="M.")
    assert patient_of(named) == patient_of(again) != patient_of(_file(RAMP, PatientID="4711"))
    assert patient_of(_file(RAMP)) is None
    assert "0815" not in str(patient_of(named))
    np.testing.assert_array_equal(decode_dicom(named), decode_dicom(_file(RAMP)))


def test_a_folder_of_dicom_files_is_read_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "scan.dcm").write_bytes(_file(RAMP))
    assert load_folder(tmp_path)[0][0].shape == (8, 8)


def test_without_the_extra_the_file_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    real = importlib.import_module
    refuse = ImportError("no pydicom")

    def without(name: str, *rest: object) -> object:
        if name == "pydicom":
            raise refuse
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingDependency, match=r"blindsight\[dicom\]"):
        read_image(_file(RAMP))


def test_files_of_pydicoms_own_are_read_or_refused_never_worse() -> None:
    folder = Path(pydicom.__file__).parent / "data" / "test_files"
    seen = 0
    for path in sorted(folder.glob("*.dcm")):
        data = path.read_bytes()
        try:
            picture = read_image(data)
        except HostileFile:
            continue
        assert picture.dtype == np.uint8 and picture.ndim in (2, 3)
        seen += is_dicom(data)
    assert seen >= 20


def test_cut_and_lying_files_are_refused() -> None:
    data = _file(RAMP)
    for broken in (
        data[:140],
        data[:-60],
        data.replace(b"DICM", b"DICM\xff\xff", 1),
        _file(RAMP, NumberOfFrames=90_000),
    ):
        with pytest.raises(HostileFile):
            read_image(broken)


@pytest.mark.parametrize("suffix", ["png", "tiff"])
@pytest.mark.parametrize("brightest", [65_535, 4_095, 300])
def test_deep_grey_keeps_what_is_seen(suffix: str, brightest: int) -> None:
    values = np.linspace(0, brightest, 256).astype(np.uint16).reshape(16, 16)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, suffix)
    picture = read_image(buffer.getvalue())
    assert picture.dtype == np.uint8
    assert picture.max() >= 128
    assert (np.diff(picture.ravel().astype(int)) >= 0).all()

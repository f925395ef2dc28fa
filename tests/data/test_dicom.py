"""DICOM and deep grey: seen as a doctor sees them, and nothing but pixels comes along."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight.core.errors import HostileFile, MissingDependency
from blindsight.data import load_folder, read_image
from blindsight.data.limits import Limits, kind_of
from blindsight.data.listing import list_photos
from blindsight.data.reading import decode_dicom, patient_of
from blindsight.tagging.photos import image_files

pydicom = pytest.importorskip("pydicom")
OWN = Path(pydicom.__file__).parent / "data" / "test_files"


def _file(pixels: np.ndarray, **fields: object) -> bytes:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = (
        SecondaryCaptureImageStorage,
        generate_uid(),
    )
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
    shifted = decode_dicom(
        _file(RAMP, RescaleSlope=2, RescaleIntercept=-1024, WindowCenter=176, WindowWidth=800)
    )
    np.testing.assert_allclose(shifted.astype(int), narrow.astype(int), atol=1)


def test_a_picture_that_fills_a_part_of_its_window_keeps_its_grey() -> None:
    """Not stretched to black and white: dark tissue stays dark, in every file of a series alike."""
    dim = decode_dicom(_file(RAMP, WindowCenter=5000, WindowWidth=10_000))
    np.testing.assert_allclose(dim, RAMP * (255 / 10_000), atol=1.5)
    outside = decode_dicom(_file(RAMP, WindowCenter=60_000, WindowWidth=100))
    assert (outside == 0).all()


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


def test_of_many_frames_one_is_decoded_whatever_the_others_would_take() -> None:
    frames = np.zeros((40, 8, 8), np.uint16)
    frames[20] = RAMP
    small = Limits(pixels=100)  # less than all frames together
    np.testing.assert_array_equal(
        decode_dicom(_file(frames), limits=small), decode_dicom(_file(RAMP))
    )


@pytest.mark.parametrize(
    "name",
    ["SC_rgb_dcmtk_+eb+cy+n1.dcm", "examples_ybr_color.dcm", "SC_ybr_full_422_uncompressed.dcm"],
)
def test_colours_are_turned_into_rgb_once(name: str) -> None:
    path = OWN / name
    dataset = pydicom.dcmread(path)
    raw = pydicom.pixels.pixel_array(
        path, raw=True, index=int(dataset.get("NumberOfFrames", 1)) // 2
    )
    wanted = pydicom.pixels.convert_color_space(raw, "YBR_FULL", "RGB")
    np.testing.assert_allclose(read_image(path).astype(int), wanted.astype(int), atol=1)


def test_neither_messages_nor_logs_quote_a_field(caplog: pytest.LogCaptureFixture) -> None:
    """pydicom warns and logs with the field's own words; whoever collects a program's logs would
    read them.
    """
    data = _file(RAMP, SpecificCharacterSet="ISO_IR 6", PatientID="0815", PatientName="Mueller")
    data = data.replace(b"ISO_IR 6", b"Mueller!").replace(b"0815", b"\xff\xfe\x00\xff")
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings():
        warnings.simplefilter("error")
        decode_dicom(data)
        patient_of(data)
        for broken in (data[:-60], data.replace(b"\x10\x00US", b"\x10\x00LO"), data[:300]):
            with pytest.raises(HostileFile) as refused:
                decode_dicom(broken, name="scan.dcm")
            assert refused.value.__cause__ is None
            assert "Mueller" not in str(refused.value)
    assert caplog.records == []


def test_files_without_an_ending_are_found_by_their_mark(tmp_path: Path) -> None:
    for name in ("IM0001", "1.2.840.10008.5", "series/IM0002"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(_file(RAMP))
    (tmp_path / "LICENCE").write_text("words")
    (tmp_path / "notes.txt").write_bytes(_file(RAMP))
    wanted = ["1.2.840.10008.5", "IM0001", "series/IM0002"]
    assert sorted(load_folder(tmp_path).names) == wanted
    assert sorted(list_photos(tmp_path).photos) == wanted
    assert (
        sorted(path.relative_to(tmp_path).as_posix() for path in image_files([tmp_path]).digests)
        == wanted
    )


def test_what_scanners_compress_is_read() -> None:
    """JPEG Lossless and JPEG-LS, which Pillow does not know, are what hospitals store most."""
    for name in ("SC_rgb_jpeg_gdcm.dcm", "SC_rgb_jls_lossy_line.dcm", "MR_small_jp2klossless.dcm"):
        assert read_image(OWN / name).std() > 0


def test_a_folder_of_dicom_files_is_read_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "scan.dcm").write_bytes(_file(RAMP))
    assert load_folder(tmp_path)[0][0].shape == (8, 8)


def test_without_the_extra_the_file_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A name that is set to None cannot be imported, and has no specification either.
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(MissingDependency, match=r"blindsight\[dicom\]"):
        read_image(_file(RAMP))


def test_files_of_pydicoms_own_are_read_or_refused_never_worse() -> None:
    seen = 0
    for path in sorted(OWN.glob("*.dcm")):
        data = path.read_bytes()
        try:
            picture = read_image(data)
        except HostileFile:
            continue
        assert picture.dtype == np.uint8 and picture.ndim in (2, 3)
        seen += kind_of(data) == "dicom"
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

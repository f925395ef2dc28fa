"""DICOM: the picture as a doctor sees it, and whose it is; every other field stays behind.

Only the fields in `_PICTURE` are read from a file, so that no name, date or place can get into a
message or a log; what pydicom itself would warn or log is silenced, because it quotes fields.
Stored values become what they measure (rescale slope and intercept), then grey levels by the file's
own window, or by the picture's own range where it names none; MONOCHROME1 is turned round. Of
several frames the middle one is taken, and only that one is decoded.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import optional_module
from blindsight.core.errors import HostileFile
from blindsight.data.limits import LIMITS, Limits, is_dicom, quiet

__all__ = ["decode_dicom", "patient_of", "prepare_dicom", "silent_pydicom", "unnamed_dicom"]

_MOST_FRAMES = 10_000
_COLOURS = ("Red", "Green", "Blue")
_PICTURE = [
    *(
        "Rows",
        "Columns",
        "NumberOfFrames",
        "SamplesPerPixel",
        "PhotometricInterpretation",
        "PlanarConfiguration",
    ),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelAspectRatio"),
    *(
        "PixelData",
        "FloatPixelData",
        "DoubleFloatPixelData",
        "ExtendedOffsetTable",
        "ExtendedOffsetTableLengths",
    ),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence"),
    *(
        f"{colour}PaletteColorLookupTable{part}"
        for colour in _COLOURS
        for part in ("Descriptor", "Data")
    ),
    *(f"Segmented{colour}PaletteColorLookupTableData" for colour in _COLOURS),
]


def unnamed_dicom(path: Path) -> bool:
    """Whether a file is DICOM although its name does not say so: scanners write IM0001, or a number
    with points.
    """
    ending = path.suffix[1:]
    if ending and not ending.isdigit():
        return False
    try:
        with path.open("rb") as file:
            return is_dicom(file.read(132))
    except OSError:
        return False


def decode_dicom(
    data: bytes, *, name: str = "the image", limits: Limits = LIMITS
) -> NDArray[np.uint8]:
    """The picture as uint8, (h, w) if grey and (h, w, 3) if it has colour; metadata stay behind."""
    module = silent_pydicom()
    try:
        with quiet():
            dataset = module.dcmread(io.BytesIO(data), specific_tags=_PICTURE)
            frames = _checked_frames(dataset, name, limits)
            _check_decoder(dataset, name)
            pixels: Any = optional_module("pydicom.pixels", extra="dicom")
            return _shown(pixels.pixel_array(dataset, index=frames // 2), dataset)
    except HostileFile:
        raise
    except Exception as error:
        # A decoder fed hostile bytes raises anything, and its words quote them.
        raise HostileFile(
            f"{name} is no DICOM picture that can be read ({type(error).__name__})."
        ) from None


def patient_of(source: bytes | Path) -> str | None:
    """The SHA-256 of the patient's id, or None where the file names none."""
    module = silent_pydicom()
    try:
        with quiet():
            given = source if isinstance(source, Path) else io.BytesIO(source)
            dataset = module.dcmread(given, specific_tags=["PatientID"], stop_before_pixels=True)
            patient = str(dataset.get("PatientID", "") or "").strip()
    except Exception as error:
        raise HostileFile(f"not a DICOM file that can be read ({type(error).__name__}).") from None
    return hashlib.sha256(patient.encode()).hexdigest() if patient else None


def silent_pydicom() -> Any:
    """pydicom, with its log off: it quotes the fields of files."""
    module = optional_module("pydicom", extra="dicom")
    logging.getLogger("pydicom").disabled = True
    return module


def prepare_dicom() -> None:
    """Import everything that decoding a DICOM file needs: a confined process can import nothing."""
    module = silent_pydicom()
    pixels: Any = optional_module("pydicom.pixels", extra="dicom")
    for syntax in module.uid.AllTransferSyntaxes:
        if syntax.is_encapsulated and not syntax.is_deflated:
            with contextlib.suppress(NotImplementedError):
                assert pixels.get_decoder(syntax).is_available in (True, False)  # noqa: S101
    meta = module.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = module.uid.ExplicitVRLittleEndian
    sample = module.dataset.Dataset()
    sample.file_meta = meta
    sample.Rows = sample.Columns = 2
    sample.SamplesPerPixel, sample.PhotometricInterpretation = 1, "MONOCHROME2"
    sample.BitsAllocated = sample.BitsStored = 8
    sample.HighBit, sample.PixelRepresentation = 7, 0
    sample.PixelData = bytes(range(4))
    file = io.BytesIO()
    sample.SOPClassUID = module.uid.SecondaryCaptureImageStorage
    sample.SOPInstanceUID = "1.2.3"
    module.dcmwrite(file, sample, enforce_file_format=True)
    decode_dicom(file.getvalue())


def _checked_frames(dataset: Any, name: str, limits: Limits) -> int:
    """How many frames there are; a size that the header should not have is refused before anything
    is decoded.
    """
    rows, columns = int(dataset.get("Rows", 0) or 0), int(dataset.get("Columns", 0) or 0)
    frames = int(dataset.get("NumberOfFrames", 1) or 1)
    if rows < 1 or columns < 1:
        raise HostileFile(f"{name} is a DICOM file without a picture.")
    if not 0 < frames <= _MOST_FRAMES:
        raise HostileFile(
            f"{name} says it has {frames:,} frames; from 1 to {_MOST_FRAMES:,} are read."
        )
    if rows * columns > limits.pixels:
        raise HostileFile(
            f"{name} says it has {rows} x {columns} pixels, more than the limit of "
            f"{limits.pixels:,}."
        )
    return frames


def _check_decoder(dataset: Any, name: str) -> None:
    """A compression that nothing installed here reads is no damage, and is said."""
    pixels: Any = optional_module("pydicom.pixels", extra="dicom")
    way = dataset.file_meta.TransferSyntaxUID
    if way.is_compressed and way.is_encapsulated and not pixels.get_decoder(way).is_available:
        raise HostileFile(
            f"{name} is compressed as {way.name}, which needs a decoder: pip install "
            "'blindsight[dicom]' brings those "
            "that there are."
        )


def _shown(frame: NDArray[Any], dataset: Any) -> NDArray[np.uint8]:
    """The frame as bytes; pydicom has turned YBR colours into RGB."""
    pixels: Any = optional_module("pydicom.pixels", extra="dicom")
    kind = str(dataset.get("PhotometricInterpretation", "MONOCHROME2"))
    if kind == "PALETTE COLOR":
        return _bytes(pixels.apply_color_lut(frame, dataset))
    if frame.ndim == 3:
        return _bytes(frame)
    measured = pixels.apply_modality_lut(frame, dataset)
    seen = np.asarray(pixels.apply_voi_lut(measured, dataset), np.float64)
    low, high = _range(seen, dataset)
    scaled = (
        np.clip((seen - low) * (255.0 / (high - low)), 0, 255)
        if high > low
        else np.zeros_like(seen)
    )
    return np.rint(255 - scaled if kind == "MONOCHROME1" else scaled).astype(np.uint8)


def _range(seen: NDArray[np.float64], dataset: Any) -> tuple[float, float]:
    """What is black and what is white: the window's ends, where there is a window, else the
    picture's own.
    """
    if "WindowWidth" in dataset and "VOILUTSequence" not in dataset:
        pixels: Any = optional_module("pydicom.pixels", extra="dicom")
        far = np.array([[-1e12, 1e12]])
        low, high = pixels.apply_windowing(far, dataset)[0]
        return float(low), float(high)
    return float(seen.min()), float(seen.max())


def _bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Colours of 16 or 32 bits keep their first eight."""
    if values.dtype.itemsize > 1:
        values = values >> (8 * (values.dtype.itemsize - 1))
    return np.asarray(values, np.uint8)

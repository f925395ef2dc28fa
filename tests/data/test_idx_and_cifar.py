from __future__ import annotations

import contextlib
import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight import data
from blindsight.core.errors import HostileFile, MissingData
from blindsight.data import Limits, load_cifar, load_idx, read_idx, write_idx

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (20, 6, 5), dtype=np.uint8)
LABELS = (np.arange(20) % 10).astype(np.uint8)


def header(*shape: int, kind: int = 8) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape)


@pytest.mark.parametrize("shape", [(0,), (7,), (3, 4, 5), (2, 4, 4, 3)])
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_comes_back_as_it_was_written(
    shape: tuple[int, ...], zipped: bool, tmp_path: Path
) -> None:
    array = RNG.integers(0, 256, shape, dtype=np.uint8)
    path = tmp_path / "a-idx"
    write_idx(path, array)
    if zipped:
        path.write_bytes(gzip.compress(path.read_bytes()))
    np.testing.assert_array_equal(read_idx(path), array)


def test_plain_idx_is_mapped_not_read(tmp_path: Path, little_memory) -> None:
    path = tmp_path / "large-idx3"
    with path.open("wb") as stream:
        stream.write(header(1000, 1000, 1000))
        stream.truncate(16 + 10**9)
    with little_memory(4):
        images = load_idx(path, limits=Limits())
        assert images[999][0].shape == (1000, 1000)
        assert sum(len(batch) for batch in images.batches(100)) == 1000


def test_images_and_labels_become_a_set(tmp_path: Path) -> None:
    write_idx(tmp_path / "i", IMAGES)
    write_idx(tmp_path / "l", LABELS)
    images = load_idx(tmp_path / "i", tmp_path / "l")
    np.testing.assert_array_equal(images.array(), IMAGES)
    assert images.labels.tolist() == LABELS.tolist()
    write_idx(tmp_path / "l", LABELS[:5])
    with pytest.raises(HostileFile, match="one label"):
        load_idx(tmp_path / "i", tmp_path / "l")
    with pytest.raises(HostileFile, match="images"):
        load_idx(tmp_path / "l")
    write_idx(tmp_path / "l", LABELS + 5)
    with pytest.raises(HostileFile, match="classes"):
        load_idx(tmp_path / "i", tmp_path / "l", classes=tuple("0123456789"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "idx"),
        (b"\x80\x04K\x01.", "idx"),
        (header(5) + bytes(4), "claims 5 bytes"),
        (header(5) + bytes(6), "claims 5 bytes"),
        (header(2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1), "claims"),
        (header(3, kind=0x0D) + bytes(12), "0x0d"),
        (struct.pack(">BBBB", 0, 0, 8, 200), "dimensions"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_hostile_idx_is_refused_without_allocating(
    content: bytes, complaint: str, zipped: bool, tmp_path: Path, little_memory
) -> None:
    path = tmp_path / "idx"
    path.write_bytes(gzip.compress(content) if zipped else content)
    with little_memory(4), pytest.raises(HostileFile):
        read_idx(path)
    if not zipped:
        with pytest.raises(HostileFile, match=complaint):
            read_idx(path)


def test_a_gzip_bomb_is_refused(tmp_path: Path, little_memory) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(header(10) + bytes(200 << 20), 9))
    with little_memory(4), pytest.raises(HostileFile, match="more or fewer"):
        read_idx(path)
    path.write_bytes(gzip.compress(header(1000, 1000, 1000) + bytes(1 << 16), 9))
    with little_memory(4), pytest.raises(HostileFile, match="so small"):
        read_idx(path)
    path.write_bytes(gzip.compress(header(100) + bytes(100))[:-12])
    with pytest.raises(HostileFile, match="damaged"):
        read_idx(path)


@given(st.binary(max_size=64), st.booleans())
def test_any_bytes_give_an_array_or_a_clear_error(
    tmp_path_factory, content: bytes, magic: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz-idx"
    path.write_bytes((b"\0\0\x08" if magic else b"") + content)
    with contextlib.suppress(HostileFile):
        assert read_idx(path).dtype == np.uint8


def cifar_records(n: int, label_bytes: int = 1) -> bytes:
    images = RNG.integers(0, 256, (n, 3072), dtype=np.uint8)
    labels = np.tile((np.arange(n) % 10).astype(np.uint8)[:, None], (1, label_bytes))
    return np.concatenate([labels, images], axis=1).tobytes()


def test_cifar_pixels_are_turned_from_planes_to_pixels(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(cifar_records(4))
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    images = load_cifar(folder, split="train")
    raw = np.frombuffer((folder / "data_batch_1.bin").read_bytes(), np.uint8).reshape(-1, 3073)
    assert images.array().shape == (20, 32, 32, 3)
    np.testing.assert_array_equal(images[1][0][5, 7], raw[1, 1:].reshape(3, 32, 32)[:, 5, 7])
    assert images.labels[:4].tolist() == [0, 1, 2, 3] and images.classes[2] == "c"
    assert len(data.load("cifar10", "test")) == 4


def test_cifar100_keeps_the_fine_label(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cifar-100-binary"
    folder.mkdir(parents=True)
    record = bytes([3, 77]) + bytes(3072)
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(record * 2)
    assert data.load("cifar100").labels.tolist() == [77] * 4


def test_the_python_version_of_cifar_is_refused_and_the_reason_is_taught(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    # A pickle that would make a file if anyone opened it.
    (tmp_path / "data_batch_1").write_bytes(
        b"\x80\x02cpathlib\nPath\nX\x01\0\0\0xtR." + str(trap).encode()
    )
    with pytest.raises(HostileFile, match="never unpickles"):
        load_cifar(tmp_path, split="train")
    (tmp_path / "data_batch_1.bin").write_bytes((tmp_path / "data_batch_1").read_bytes())
    with pytest.raises(HostileFile, match="binary version"):
        data.arrays.read_cifar_batch(tmp_path / "data_batch_1.bin")
    assert not trap.exists()


def test_broken_cifar_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingData):
        load_cifar(tmp_path)
    path = tmp_path / "test_batch.bin"
    for content in (b"", bytes(3072), bytes(3074), b"\x0b" + bytes(3072)):
        path.write_bytes(content)
        with pytest.raises(HostileFile):
            load_cifar(tmp_path, split="test")

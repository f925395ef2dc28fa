"""Vectors from files: three formats, in pieces, and hostile ones."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from blindsight.app.encoders import check_encoder
from blindsight.core.errors import BlindsightError, HostileFile, InvalidData, InvalidParameter
from blindsight.encoders import Embeddings, open_encoder
from blindsight.encoders.base import Encoder

ROWS = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
IDS = [f"photo-{number}" for number in range(50)]


def written(folder: Path, kind: str) -> Path:
    path = folder / f"vectors.{kind}"
    if kind == "npy":
        np.save(path, ROWS)
    elif kind == "npz":
        np.savez(path, vectors=ROWS, ids=np.array(IDS))
    else:
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        table = arrow.table({"id": IDS, "embedding": arrow.array(list(ROWS))})
        parquet.write_table(table, path, row_group_size=20)
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet"])
def test_rows_come_in_pieces_with_their_ids(tmp_path: Path, kind: str) -> None:
    vectors = open_encoder(written(tmp_path, kind))
    assert isinstance(vectors, Embeddings) and isinstance(vectors, Encoder)
    assert (len(vectors), vectors.dimensions) == (50, 5)
    pieces = list(vectors.pieces(rows=8))
    assert max(len(ids) for ids, _ in pieces) <= 8
    ids = [name for names, _ in pieces for name in names]
    assert ids == (IDS if kind != "npy" else [str(number) for number in range(50)])
    expected = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    np.testing.assert_allclose(np.concatenate([rows for _, rows in pieces]), expected, rtol=1e-5)
    some_ids, some = vectors.take(10)
    assert len(some_ids) == len(some) == 10
    np.testing.assert_allclose(some, expected[::5], rtol=1e-5)
    assert check_encoder(tmp_path / f"vectors.{kind}").good


def test_a_file_larger_than_a_piece_is_not_read_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "large.npy", np.ones((200_000, 64), np.float32))  # 51 MB
    vectors = Embeddings(tmp_path / "large.npy")
    tracemalloc.start()
    try:
        assert sum(len(ids) for ids, _ in vectors.pieces(rows=1000)) == 200_000
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_the_identity_says_nothing_of_the_private_rows(tmp_path: Path) -> None:
    one = Embeddings(written(tmp_path, "npy"), name="my-model").identity()
    np.save(tmp_path / "other.npy", ROWS[::-1] * 3)
    assert one == Embeddings(tmp_path / "other.npy", name="my-model").identity()
    assert one == {"kind": "embeddings", "name": "my-model", "dimensions": 5}


def test_texts_are_looked_up_in_a_file_of_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "texts.npz", vectors=ROWS[:2], ids=np.array(["Dog", "cat"]))
    vectors = Embeddings(written(tmp_path, "npy"), texts=tmp_path / "texts.npz")
    dog = vectors.texts(["dog"])
    assert dog is not None and dog[0] @ ROWS[0] == pytest.approx(np.linalg.norm(ROWS[0]), rel=1e-4)
    with pytest.raises(InvalidParameter, match="no entry 'horse'"):
        vectors.texts(["horse"])
    assert Embeddings(tmp_path / "vectors.npy").texts(["dog"]) is None


def test_queries_are_vectors_of_the_same_length_and_pictures_are_refused(tmp_path: Path) -> None:
    vectors = Embeddings(written(tmp_path, "npy"))
    assert vectors.vectors(ROWS[0]).shape == (1, 5)
    with pytest.raises(InvalidData, match="5 numbers"):
        vectors.vectors(np.ones(6))
    with pytest.raises(InvalidParameter, match="cannot encode images"):
        vectors.images(np.zeros((1, 8, 8, 3), np.uint8))


def hostile(folder: Path, kind: str) -> Path:
    bad = ROWS.copy()
    match kind:
        case "objects.npy":
            np.save(folder / kind, np.array([{"a": 1}], dtype=object))
        case "nan.npy":
            bad[7, 2] = np.nan
            np.save(folder / kind, bad)
        case "zero.npy":
            bad[7] = 0
            np.save(folder / kind, bad)
        case "flat.npy":
            np.save(folder / kind, bad[0])
        case "texts.npy":
            np.save(folder / kind, np.array([["a", "b"]]))
        case "cut.npy":
            np.save(folder / kind, bad)
            (folder / kind).write_bytes((folder / kind).read_bytes()[:200])
        case "ids.npz":
            np.savez(folder / kind, vectors=bad, ids=np.array(IDS[:3]))
        case "noise.npz" | "noise.parquet":
            (folder / kind).write_bytes(np.random.default_rng(0).bytes(500))
        case "ragged.parquet":
            import pyarrow as arrow
            import pyarrow.parquet as parquet

            parquet.write_table(arrow.table({"embedding": [[1.0, 2.0], [1.0]]}), folder / kind)
    return folder / kind


@pytest.mark.parametrize(
    "kind",
    [
        "objects.npy",
        "nan.npy",
        "zero.npy",
        "flat.npy",
        "texts.npy",
        "cut.npy",
        "ids.npz",
        "noise.npz",
        "noise.parquet",
        "ragged.parquet",
    ],
)
def test_hostile_files_are_refused_and_never_unpickled(tmp_path: Path, kind: str) -> None:
    path = hostile(tmp_path, kind)
    with pytest.raises(HostileFile):
        list(Embeddings(path).pieces())
    report = check_encoder(path)
    assert not report.good


def test_two_vectors_with_one_id_are_seen_by_the_check(tmp_path: Path) -> None:
    np.savez(tmp_path / "twice.npz", vectors=ROWS[:2], ids=np.array(["a", "a"]))
    assert "occurs twice" in " ".join(check_encoder(tmp_path / "twice.npz").problems)


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vectors.csv").write_text("1,2")
    with pytest.raises(BlindsightError, match=r"\.npy, \.npz"):
        Embeddings(tmp_path / "vectors.csv")


HELD_ROWS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
HELD_IDS = ["a", "b", "c"]


class _HubDataset:
    """What is used of a data set of Hugging Face: names of columns, and columns by name."""

    column_names: ClassVar[list[str]] = ["label", "path", "embedding"]

    def __len__(self) -> int:
        return 3

    def __getitem__(self, name: str) -> list[object]:
        return {"label": [0, 1, 0], "path": HELD_IDS, "embedding": HELD_ROWS.tolist()}[name]


def _inputs() -> dict[str, tuple[Any, list[str]]]:
    pandas = pytest.importorskip("pandas")
    arrow = pytest.importorskip("pyarrow")
    torch = pytest.importorskip("torch")
    numbers = ["0", "1", "2"]
    return {
        "numpy": (HELD_ROWS, numbers),
        "list": (list(HELD_ROWS), numbers),
        "tensor": (torch.tensor(HELD_ROWS, requires_grad=True), numbers),
        "torch data set": (
            torch.utils.data.TensorDataset(torch.tensor(HELD_ROWS), torch.arange(3)),
            numbers,
        ),
        "pandas, one column": (
            pandas.DataFrame({"id": HELD_IDS, "embedding": list(HELD_ROWS)}),
            HELD_IDS,
        ),
        "pandas, many columns": (pandas.DataFrame(HELD_ROWS, index=HELD_IDS), HELD_IDS),
        "pandas, many columns and ids": (
            pandas.DataFrame(HELD_ROWS, columns=list("wxyz")).assign(name=HELD_IDS),
            HELD_IDS,
        ),
        "arrow": (arrow.table({"name": HELD_IDS, "vectors": HELD_ROWS.tolist()}), HELD_IDS),
        "hub": (_HubDataset(), HELD_IDS),
    }


def test_vectors_are_taken_as_they_come() -> None:
    unit = HELD_ROWS / np.linalg.norm(HELD_ROWS, axis=1, keepdims=True)
    for kind, (rows, ids) in _inputs().items():
        held = Embeddings.from_rows(rows, name="model")
        [(named, vectors)] = held.pieces()
        assert (named, len(held), held.dimensions, held.name) == (ids, 3, 4, "model"), kind
        np.testing.assert_allclose(vectors, unit, rtol=1e-5, err_msg=kind)


def test_a_data_set_of_hugging_face_is_taken_in_every_format() -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    made = datasets.Dataset.from_dict(
        {"label": [0, 1, 0], "path": HELD_IDS, "embedding": HELD_ROWS.tolist()}
    )
    formats = [made.with_format(kind) for kind in (None, "numpy", "torch", "pandas", "arrow")]
    for rows in (*formats, made.to_iterable_dataset()):
        [(named, vectors)] = Embeddings.from_rows(rows).pieces()
        assert (named, vectors.shape) == (HELD_IDS, (3, 4))
    with pytest.raises(InvalidData, match=r"the splits train: choose one, as in rows\['train'\]"):
        Embeddings.from_rows(datasets.DatasetDict({"train": made}))


def test_rows_that_are_no_vectors_of_one_length_are_refused() -> None:
    for rows, ids in ((HELD_ROWS[0], None), (HELD_ROWS, ["a"]), (np.array([["x", "y"]]), None)):
        with pytest.raises(InvalidData, match="rows must be vectors of one length"):
            Embeddings.from_rows(rows, ids)

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight import data
from blindsight.core.errors import HostileFile, InvalidParameter, MissingData
from blindsight.data import (
    Column,
    Limits,
    load_adult,
    load_arff,
    load_bank,
    load_csv,
    load_multilabel_arff,
)

PEOPLE = "age, work ,label\n30,a,yes\n40, b,no\n50,a,no\n"


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_csv_numbers_stay_and_words_become_indicators(tmp_path: Path) -> None:
    table = load_csv(written(tmp_path, PEOPLE), target="label")
    assert table.columns == ("age", "work=a", "work=b") and table.classes == ("no", "yes")
    assert table.X.tolist() == [[30, 1, 0], [40, 0, 1], [50, 1, 0]] and table.y.tolist() == [
        1,
        0,
        0,
    ]


def test_a_public_code_book_fixes_the_columns_whatever_the_data(tmp_path: Path) -> None:
    columns = [Column("age", cuts=(35, 45)), Column("work", ("a", "b", "c"))]
    table = load_csv(
        written(tmp_path, PEOPLE), target="label", columns=columns, classes=("no", "yes")
    )
    assert table.columns == (
        "age(-inf,35]",
        "age(35,45]",
        "age(45,inf]",
        "work=a",
        "work=b",
        "work=c",
    )
    assert table.X[:, :3].tolist() == np.eye(3).tolist()
    with pytest.raises(HostileFile, match="outside its 1 categories"):
        load_csv(
            written(tmp_path, PEOPLE),
            target="label",
            columns=[Column("age"), Column("work", ("a",))],
        )


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_tables_are_read_and_bombs_refused(
    suffix: str, pack, tmp_path: Path, little_memory
) -> None:
    path = tmp_path / f"t.csv{suffix}"
    path.write_bytes(pack(PEOPLE.encode()))
    assert len(load_csv(path, target="label")) == 3
    path.write_bytes(pack(bytes(20 << 20)))
    with little_memory(16), pytest.raises(HostileFile, match="bytes of text"):
        load_csv(path, limits=Limits(text_bytes=1 << 20))
    path.write_bytes(pack(PEOPLE.encode())[:-6])
    with pytest.raises(HostileFile, match="damaged"):
        load_csv(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no rows"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n3\n", "line 3"),
        ("a,a\n1,2\n", "once"),
        ("a,b\n1,\0\n", "zero bytes"),
        ("a,b\n1,2\n" * 20, "cells"),
        ("a\n" + "x" * 200_000, "line"),
    ],
)
def test_broken_tables_are_refused(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(HostileFile, match=complaint):
        load_csv(written(tmp_path, text), limits=Limits(cells=30))


def test_numbers_must_be_finite(tmp_path: Path) -> None:
    for cell in ("nan", "inf", "1e999", "x"):
        path = written(tmp_path, f"a\n1\n{cell}\n")
        with pytest.raises(HostileFile, match="column a"):
            load_csv(path, columns=[Column("a")])
    with pytest.raises(InvalidParameter, match="target"):
        load_csv(written(tmp_path, PEOPLE), target="wage")
    with pytest.raises(MissingData):
        load_csv(tmp_path / "absent.csv")


@given(st.text(max_size=200))
def test_any_text_gives_a_table_or_a_clear_error(tmp_path_factory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for read in (load_csv, load_arff):
        try:
            assert np.isfinite(read(path).X).all()
        except HostileFile:
            continue


ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, "
)


def test_adult_is_encoded_by_its_code_book(tmp_path: Path) -> None:
    train = written(
        tmp_path, ADULT_ROW + "United-States, <=50K\n" + ADULT_ROW + "?, >50K\n\n", "adult.data"
    )
    test = written(tmp_path, "|1x3 Cross validator\n" + ADULT_ROW + "Cuba, >50K.\n", "adult.test")
    table = load_adult(train, test)
    assert table.X.shape == (3, 105) and table.y.tolist() == [0, 1, 1]
    countries = [i for i, name in enumerate(table.columns) if name.startswith("native-country=")]
    assert table.X[:, countries].sum(axis=1).tolist() == [1, 0, 1]  # a missing value is all zeros
    binary = load_adult(train, encoding="binary")
    assert binary.X.shape == (2, 123) and set(np.unique(binary.X)) == {0.0, 1.0}
    assert binary.X.sum(axis=1).tolist() == [14, 13]
    with pytest.raises(HostileFile, match="15 columns"):
        load_adult(written(tmp_path, "1,2,3\n", "adult.data"))
    with pytest.raises(HostileFile, match="labels"):
        load_adult(written(tmp_path, ADULT_ROW + "Cuba, rich\n", "adult.data"))


BANK_HEAD = (
    "age,job,marital,education,default,balance,housing,loan,contact,day,month,duration,campaign,pdays,previous,"
    "poutcome,y"
)
BANK_ROW = "58,management,married,tertiary,no,2143,yes,no,unknown,5,may,261,1,-1,0,unknown,no"


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_bank_is_read_with_either_separator(delimiter: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"{BANK_HEAD}\n{BANK_ROW}\n".replace(",", delimiter), "bank-full.csv")
    assert load_bank(path).X.shape == (1, 51)
    paper = load_bank(path, encoding="paper")
    # The same row in the encoding that the metric paper used.
    expected = [
        58,
        *[0, 0, 1] + [0] * 8,
        0,
        1,
        0,
        0,
        1,
        0,
        2143,
        1,
        0,
        0,
        0,
        155,
        261,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
    ]
    assert paper.X.tolist() == [expected] and paper.y.tolist() == [0]
    with pytest.raises(HostileFile, match="columns"):
        load_bank(written(tmp_path, PEOPLE))


ARFF = """% a comment
@relation people
@attribute age numeric
@attribute 'type of work' {a, 'b c'}
@ATTRIBUTE label {no,yes}
@data
30,a,yes
% another
40,'b c',no
"""


def test_arff_is_read_by_its_declarations(tmp_path: Path) -> None:
    table = load_arff(written(tmp_path, ARFF, "t.arff"))
    assert table.columns == ("age", "type of work=a", "type of work=b c")
    assert table.X.tolist() == [[30, 1, 0], [40, 0, 1]] and table.y.tolist() == [1, 0]
    assert load_arff(written(tmp_path, ARFF, "t.arff"), target="type of work").y.tolist() == [0, 1]


def test_sparse_multilabel_arff_is_filled(tmp_path: Path) -> None:
    text = (
        "@relation m\n@attribute f0 numeric\n@attribute f1 {0,1}\n@attribute l0 {0,1}\n@attribute "
        "l1 {0,1}\n@data\n"
    )
    rows = load_multilabel_arff(written(tmp_path, text + "{0 2.5, 3 1}\n{1 1,2 1}\n{}\n"), labels=2)
    assert rows.features.tolist() == [[2.5, 0], [0, 1], [0, 0]]
    assert rows.labels.tolist() == [[0, 1], [1, 0], [0, 0]] and rows.classes == ("l0", "l1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@data\n1\n",
        "@attribute a numeric\n",
        "@attribute a numeric\n@data\n",
        "@attribute a string\n@data\nx\n",
        "@attribute a\n@data\n1\n",
        "@attribute a numeric\n@data\n1,2\n",
        "@attribute a numeric\n@data\n{7 1}\n",
        "@attribute a numeric\n@data\n{-1 1}\n",
        "@attribute a numeric\n@data\n{x}\n",
        "@attribute a {u,v}\n@attribute b {u,v}\n@data\nw,u\n",
        "@attribute a {}\n@data\n1\n",
    ],
)
def test_broken_arff_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(HostileFile):
        load_arff(written(tmp_path, text, "t.arff"))


def test_sparse_rows_that_stand_for_too_much_are_refused(tmp_path: Path, little_memory) -> None:
    text = (
        "".join(f"@attribute a{i} numeric\n" for i in range(1000)) + "@data\n" + "{0 1}\n" * 40_000
    )
    with little_memory(24), pytest.raises(HostileFile, match="cells"):
        load_arff(written(tmp_path, text, "t.arff"))


def test_tables_of_numbers_have_their_label_last(tmp_path: Path) -> None:
    home = tmp_path / "data" / "tabular"
    home.mkdir(parents=True)
    (home / "IPUMS-BR.dat").write_text("1 2.5 0\n3 4 1 \n" * 5)
    table = data.load("ipums-br")
    assert table.X.shape == (10, 2) and table.y.tolist() == [0, 1] * 5
    assert len(data.load("ipums-br", "train")) == 8
    for text in ("", "1 2\n3\n", "1 x\n", "1 7\n", "nan 1\n"):
        (home / "IPUMS-BR.dat").write_text(text)
        with pytest.raises(HostileFile):
            data.load("ipums-br")


def test_arrays_from_outside_hold_no_objects_and_no_lies(tmp_path: Path, little_memory) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3))
    assert data.load_arrays(path)["x"].tolist() == [0, 1, 2]
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(HostileFile):
        data.load_arrays(path)
    np.savez_compressed(path, x=np.zeros(4 << 20))
    with little_memory(8), pytest.raises(HostileFile, match="unpack"):
        data.load_arrays(path, limits=Limits(unpacked_bytes=1 << 20))
    np.savez(path, x=np.arange(3))
    path.write_bytes(
        path.read_bytes()
        .replace(b"(3,), ", b"(3e9,)")
        .replace(b"'shape': (3,)", b"'shape': (9**9,)")
    )
    with pytest.raises(HostileFile):
        data.load_arrays(path)
    path.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(HostileFile):
        data.load_arrays(path)

"""Labels as people keep them are read, or refused with a sentence that says what to do."""

from __future__ import annotations

import io
import json
import re
import struct
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight.core.errors import InvalidData, MissingData
from blindsight.data.label_tables import LabelTable, read_label_table, read_table
from blindsight.data.tag_files import embedded_keywords, photo_keywords, sidecar_text

PHOTOS = ("beach/001.jpg", "beach/002.JPG", "Grün/003.png", "004.png")
WANTED = {"beach/001.jpg": {"dog", "person"}, "004.png": {"cat"}}


def table(
    tmp_path: Path, data: bytes | str, name: str = "labels.csv", column: str = ""
) -> LabelTable:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_label_table(f"{path}{column}", tmp_path, PHOTOS)


def labels(read: LabelTable) -> dict[str, set[str]]:
    return {name: set(words) for name, words in read.labels.items() if words}


CSV = "image,labels\nbeach/001.jpg,dog;person\n004.png,cat\n"
SHAPES: dict[str, bytes | str] = {
    "our own": CSV,
    "semicolons of Excel": 'image;labels\nbeach/001.jpg;"dog,person"\n004.png;cat\n',
    "tabs": "image\tlabels\nbeach/001.jpg\tdog,person\n004.png\tcat\n",
    "a line that names the delimiter": "sep=;\nimage;labels\nbeach/001.jpg;dog,person\n004.png;cat\n",  # noqa: E501
    "filename and tags": 'filename,tags\nbeach/001.jpg,"dog, person"\n004.png,cat\n',
    "quotes around everything": '"image","labels"\n"beach/001.jpg","dog, person"\n"004.png","cat"\n',  # noqa: E501
    "UTF-8 with a mark": b"\xef\xbb\xbf" + CSV.encode(),
    "UTF-16 with a mark": CSV.encode("utf-16"),
    "UTF-16 without a mark": CSV.encode("utf-16-le"),
    "UTF-16, the other order": b"\xfe\xff" + CSV.encode("utf-16-be"),
    "lines of Windows": CSV.replace("\n", "\r\n"),
    "lines of old Macs within quotes": CSV.replace("cat\n", '"cat"\n'),
    "backslashes": CSV.replace("beach/001", "beach\\001"),
    "another case": CSV.replace("beach/001.jpg", "BEACH/001.JPG"),
    "names without folders": CSV.replace("beach/", ""),
    "names without endings": CSV.replace(".jpg", "").replace(".png", ""),
    "names from here": CSV.replace("beach", "./beach"),
    "other columns too": "id,image,size,labels\n1,beach/001.jpg,9,dog;person\n2,004.png,9,cat\n",
    "one line per label": "image,label\nbeach/001.jpg,dog\nbeach/001.jpg,person\n004.png,cat\n",
    "one column per label": "image,dog,person,cat\nbeach/001.jpg,1,1,0\n004.png,0,0,1\n",
    "yes and no": "file,dog,person,cat\nbeach/001.jpg,yes,yes,no\n004.png,no,no,yes\n",
    "crosses": "file,dog,person,cat\nbeach/001.jpg,x,X,\n004.png,,,x\n",
    "truth of pandas": "path,dog,person,cat\nbeach/001.jpg,True,True,False\n004.png,False,False,True\n",  # noqa: E501
    "lists of Python": "image,labels\nbeach/001.jpg,\"['dog', 'person']\"\n004.png,['cat']\n",
    "empty lines": CSV.replace("004", "\n,\n\n004"),
    "spaces": "image , labels\n beach/001.jpg , dog ; person \n004.png, cat\n",
    "no line of names": "beach/001.jpg,dog,person\n004.png,cat\n",
    "a list for AutoML": "TRAIN,gs://b/beach/001.jpg,dog,person\nTEST,gs://b/004.png,cat\n",
    "a list with blanks": "beach/001.jpg dog\nbeach/001.jpg person\n004.png cat\n",
    "remarks before it": "# exported\n# by a program\n" + CSV,
    "a mark before the names": "#" + CSV,
    "German": "Dateiname;Schlagwörter\nbeach/001.jpg;dog,person\n004.png;cat\n".encode("cp1252"),
    "Open Images": "ImageID,Source,LabelName,Confidence\n001,human,dog,1\n001,human,person,1\n004,human,cat,1\n",  # noqa: E501
    "Label Studio's CSV": "image,id,choice\n/data/upload/3/0123abcd-001.jpg,1,dog;person\n/data/upload/3/89abcdef-004.png,2,cat\n",  # noqa: E501
}
JSON_SHAPES = {
    "names and labels": ("a.json", {"beach/001.jpg": ["dog", "person"], "004.png": "cat"}),
    "records": (
        "a.json",
        [
            {"file_name": "001.jpg", "Labels": ["dog", "person"]},
            {"file_name": "004.png", "Labels": ["cat"]},
        ],
    ),
    "Label Studio's short form": (
        "a.json",
        [
            {
                "id": 1,
                "image": "/data/upload/0123abcd-001.jpg",
                "choice": {"choices": ["dog", "person"]},
            },
            {"id": 2, "image": "/data/upload/0123abcd-004.png", "choice": "cat"},
        ],
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_tables_of_every_shape_are_read(tmp_path: Path, shape: str) -> None:
    assert labels(table(tmp_path, SHAPES[shape])) == WANTED


@pytest.mark.parametrize("shape", JSON_SHAPES)
def test_json_of_every_shape_is_read(tmp_path: Path, shape: str) -> None:
    name, content = JSON_SHAPES[shape]
    assert labels(table(tmp_path, json.dumps(content), name)) == WANTED
    if isinstance(content, list):
        lines = "\n".join(json.dumps(record) for record in content)
        assert labels(table(tmp_path, lines, "a.jsonl")) == WANTED


def test_windows_letters_are_read(tmp_path: Path) -> None:
    read = table(tmp_path, "image;labels\n004.png;Möwe\n".encode("cp1252"))
    assert labels(read) == {"004.png": {"Möwe"}}


def test_names_match_whatever_their_unicode_form(tmp_path: Path) -> None:
    for form in ("NFC", "NFD"):
        read = table(tmp_path, "image,labels\n" + unicodedata.normalize(form, "Grün/003.png,dog\n"))
        assert labels(read) == {"Grün/003.png": {"dog"}}


def test_a_column_can_be_named(tmp_path: Path) -> None:
    text = "filename,patient,finding\n004.png,p1,effusion\n"
    assert labels(table(tmp_path, text, column=":Finding")) == {"004.png": {"effusion"}}
    with pytest.raises(InvalidData, match="no column 'nothing'"):
        table(tmp_path, text, column=":nothing")


def test_missing_and_ambiguous_photos_are_listed_and_stop_nothing(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("image,labels\n004.png,cat\nnowhere.jpg,dog\n001.jpg,dog\n")
    read = read_label_table(path, tmp_path, (*PHOTOS, "sea/001.jpg"))
    assert read.missing == ("nowhere.jpg",)
    assert read.ambiguous == ("001.jpg",)
    assert labels(read) == {"004.png": {"cat"}}


def test_excel_and_parquet_are_read(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="the extra tables is not installed")
    pyarrow = pytest.importorskip("pyarrow", reason="the extra tables is not installed")
    from pyarrow import parquet

    book = openpyxl.Workbook()
    for row in (("Image", "Labels"), ("beach/001.jpg", "dog;person"), ("004.png", "cat")):
        book.active.append(row)
    book.save(tmp_path / "labels.xlsx")
    assert labels(read_label_table(tmp_path / "labels.xlsx", tmp_path, PHOTOS)) == WANTED
    columns = {"image": ["beach/001.jpg", "004.png"], "labels": [["dog", "person"], ["cat"]]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "labels.parquet")
    assert labels(read_label_table(tmp_path / "labels.parquet", tmp_path, PHOTOS)) == WANTED


def test_json_of_coco_and_label_studio_is_read(tmp_path: Path) -> None:
    coco = {
        "images": [{"id": 1, "file_name": "001.jpg"}, {"id": 2, "file_name": "004.png"}],
        "categories": [
            {"id": 1, "name": "dog"},
            {"id": 2, "name": "person"},
            {"id": 9, "name": "cat"},
        ],
        "annotations": [
            {"image_id": 1, "category_id": 1},
            {"image_id": 1, "category_id": 2},
            {"image_id": 2, "category_id": 9},
        ],
    }
    assert labels(table(tmp_path, json.dumps(coco), "coco.json")) == WANTED

    def task(image: str, choices: list[str]) -> dict:
        result = [{"type": "choices", "value": {"choices": choices}}]
        return {"data": {"image": image}, "annotations": [{"result": result}]}

    studio = [
        task("/data/upload/1/0123abcd-001.jpg", ["dog", "person"]),
        task("/data/local-files/?d=004.png", ["cat"]),
    ]
    assert labels(table(tmp_path, json.dumps(studio), "studio.json")) == WANTED


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.csv", "", "empty"),
        ("a.csv", "image,size\n004.png,9\n", "no column with labels"),
        ("a.csv", "image,dx,count\n004.png,mel,1\n", "no column with labels"),
        ("a.csv", "image,dx,checked\n004.png,mel,1\n001.jpg,nv,0\n", "no column with labels"),
        ("a.xml", "<annotation/>", "Export them as CSV"),
        ("a.csv", "image,labels\n004.png,\n", "nothing to learn from"),
        ("a.csv", "image,labels\nnowhere.jpg,dog\n", "none of the 1 photos"),
        ("a.csv", 'image,labels\n004.png,"dog\n', "Check its quotes"),
        ("a.csv", "image,labels\n004.png,dog,cat\n", "3 columns instead of 2"),
        ("a.csv", b"\x89PNG\r\n\x1a\n\x00\x00\x00", "not a table"),
        ("a.xls", b"\xd0\xcf\x11\xe0", "Save it as .xlsx"),
        ("a.xlsx", b"PK\x03\x04nothing", "Excel"),
        ("a.parquet", b"PAR1", "Parquet"),
        ("a.json", "{}", "neither COCO"),
        ("a.json", "[{}]", "lacks a field"),
        ("a.json", "[" * 100_000, "not JSON"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(
    tmp_path: Path, name: str, data: bytes | str, words: str
) -> None:
    with pytest.raises((InvalidData, MissingData), match=words):
        table(tmp_path, data, name)


def test_a_table_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="does not exist"):
        read_label_table(tmp_path / "none.csv", tmp_path, PHOTOS)


def test_folders_are_labels() -> None:
    read = read_label_table("folders", Path(), ("animal/dog/1.jpg", "2.jpg"))
    assert labels(read) == {"animal/dog/1.jpg": {"animal", "dog"}}


def jpeg(xmp: str = "", iptc: tuple[str, ...] = ()) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, "JPEG", xmp=xmp.encode() or b" ")
    data = file.getvalue()
    if not iptc:
        return data
    records = b"".join(
        b"\x1c\x02\x19" + struct.pack(">H", len(word.encode())) + word.encode() for word in iptc
    )
    block = b"8BIM\x04\x04\x00\x00" + struct.pack(">I", len(records)) + records
    body = b"Photoshop 3.0\x00" + block + b"\x00" * (len(records) % 2)
    return data[:2] + b"\xff\xed" + struct.pack(">H", len(body) + 2) + body + data[2:]


def test_keywords_inside_photos_are_read(tmp_path: Path) -> None:
    nested = sidecar_text(["animal|dog", "beach"])
    nested = re.sub("<dc:subject>.*</dc:subject>", "", nested, flags=re.DOTALL)
    (tmp_path / "a.jpg").write_bytes(jpeg(nested, iptc=("Sommer", "Möwe")))
    words = {"animal", "dog", "beach", "Sommer", "Möwe"}
    assert photo_keywords(tmp_path / "a.jpg") == words
    read = read_label_table("keywords", tmp_path, ("a.jpg",))
    assert labels(read) == {"a.jpg": words}


@pytest.mark.parametrize("name", ["a.jpg.xmp", "a.xmp"])
def test_sidecars_are_read_as_they_are_written(tmp_path: Path, name: str) -> None:
    words = {"dog", "a < b & c", "Möwe", '"quoted"'}
    (tmp_path / "a.jpg").write_bytes(jpeg())
    (tmp_path / name).write_text(sidecar_text(words), encoding="utf-8")
    assert photo_keywords(tmp_path / "a.jpg") == words


def test_hostile_keywords_are_none() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa">]>' + sidecar_text(["&a;"]).replace("&amp;", "&")
    assert embedded_keywords(jpeg(sidecar_text(["dog"]))[:-300] + b"\xff\xd9") in (set(), {"dog"})
    for text in (bomb, "<x:xmpmeta", "<x:xmpmeta></x:xmpmeta>", "<x:xmpmeta>&</x:xmpmeta>"):
        assert embedded_keywords(b"\xff\xd8" + text.encode()) == set()
    rng = np.random.default_rng(0)
    good = jpeg(sidecar_text(["dog"]), iptc=("sea",))
    for _ in range(300):
        data = bytearray(good)
        for at in rng.integers(0, len(data), 6):
            data[at] = rng.integers(256)
        assert isinstance(embedded_keywords(bytes(data)), set)


def test_read_table_pads_short_lines(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,c\n1\n1,2,3\n")
    assert read_table(tmp_path / "t.csv").rows == (("1", "", ""), ("1", "2", "3"))

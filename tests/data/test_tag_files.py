"""Tags that are written for other programs are read back as they were."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.data.label_tables import read_label_table
from blindsight.data.tag_files import FORMATS, TaggedImage, format_of, photo_keywords, write_tags

IMAGES = (
    TaggedImage("trip/caf\u00e9 1.jpg", ("dog", "beach & <sea>"), (0.9, 0.6)),
    TaggedImage("raw.nef", ("animal|dog",), (0.7,)),
    TaggedImage("empty.png", ()),
)
WANTED = {
    "trip/caf\u00e9 1.jpg": {"dog", "beach & <sea>"},
    "raw.nef": {"animal", "dog"},
    "empty.png": set(),
}


@pytest.mark.parametrize("name", ["tags.csv", "tags.json", "tags.parquet", "tasks.json"])
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    kind = "label-studio" if name == "tasks.json" else None
    [file] = write_tags(IMAGES, tmp_path / name, format=kind)
    table = read_label_table(file, tmp_path, [item.image for item in IMAGES])
    flat = {
        photo: {level for word in words for level in word.split("|")}
        for photo, words in table.labels.items()
    }
    assert flat == WANTED
    assert table.missing == ()


def test_sidecars_hold_subjects_and_hierarchy(tmp_path: Path) -> None:
    files = write_tags(IMAGES, tmp_path, format="xmp")
    names = {path.relative_to(tmp_path).as_posix() for path in files}
    assert names == {"trip/caf\u00e9 1.jpg.xmp", "raw.nef.xmp", "raw.xmp", "empty.png.xmp"}
    for item in IMAGES:
        assert photo_keywords(tmp_path / item.image) == WANTED[item.image]
    body = (tmp_path / "raw.xmp").read_text().split("?>", 1)[1].rsplit("<?", 1)[0]
    root = ElementTree.fromstring(body)  # noqa: S314  (just written)
    rdf = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
    subjects = root.iter("{http://purl.org/dc/elements/1.1/}subject")
    assert [item.text for each in subjects for item in each.iter(f"{rdf}li")] == ["animal", "dog"]
    paths = root.iter("{http://ns.adobe.com/lightroom/1.0/}hierarchicalSubject")
    assert [item.text for each in paths for item in each.iter(f"{rdf}li")] == ["animal|dog"]


def test_sidecars_with_edits_are_not_written_over(tmp_path: Path) -> None:
    write_tags(IMAGES, tmp_path, format="xmp")
    write_tags(IMAGES, tmp_path, format="xmp")  # the same again
    (tmp_path / "raw.xmp").write_text("edited")
    (tmp_path / "empty.png.xmp").unlink()
    with pytest.raises(InvalidData, match=r"1 sidecars exist already, .*raw\.xmp"):
        write_tags(IMAGES, tmp_path, format="xmp")
    assert not (tmp_path / "empty.png.xmp").exists(), "nothing was written"


def test_corrections_made_in_label_studio_come_before_predictions(tmp_path: Path) -> None:
    [file] = write_tags(IMAGES[:1], tmp_path / "tasks.json", format="label-studio")
    tasks = json.loads(file.read_text())
    choice = {"value": {"choices": ["cat"]}, "from_name": "labels", "type": "choices"}
    tasks[0]["annotations"] = [{"result": [choice]}]
    file.write_text(json.dumps(tasks))
    table = read_label_table(file, tmp_path, [IMAGES[0].image])
    assert table.labels == {IMAGES[0].image: {"cat"}}


def test_photos_that_are_named_one_by_one_have_their_sidecars_in_the_folder(
    tmp_path: Path,
) -> None:
    images = [TaggedImage("/somewhere/else/a.jpg", ("dog",)), TaggedImage("../b.jpg", ("cat",))]
    files = write_tags(images, tmp_path, format="xmp")
    assert files == [tmp_path / "a.jpg.xmp", tmp_path / "b.jpg.xmp"]


def test_a_name_that_is_not_utf8_is_written_with_escapes(tmp_path: Path) -> None:
    odd = [TaggedImage("caf\udce9.jpg", ("dog",))]
    for name in ("tags.csv", "tags.json", "tags.parquet"):
        [file] = write_tags(odd, tmp_path / name)
        assert b"caf" in file.read_bytes()


def test_the_format_is_named_or_follows_from_the_ending() -> None:
    assert [format_of(f"x.{end}", None) for end in ("csv", "JSON", "pq")] == [
        "csv",
        "json",
        "parquet",
    ]
    assert {format_of("folder", kind) for kind in FORMATS} == set(FORMATS)
    with pytest.raises(InvalidParameter, match="name the format, one of csv"):
        format_of("folder", None)
    with pytest.raises(InvalidParameter, match="format must be one of"):
        format_of("x.csv", "docx")

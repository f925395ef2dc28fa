from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from blindsight import data
from blindsight.core.errors import HostileFile, MissingData
from blindsight.data import load_celeba, load_coco, load_label_list, load_nuswide, load_voc
from blindsight.data.annotations import read_voc_objects, stream_lists


def photo(path: Path, value: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)


def voc_xml(*objects: tuple[str, int]) -> str:
    inner = "".join(
        f"<object><name>{name}</name><difficult>{difficult}</difficult><part><name>head</name></part></object>"
        for name, difficult in objects
    )
    return (
        "<annotation><filename>x.jpg</filename><source><name>no "
        f"object</name></source>{inner}</annotation>"
    )


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    root = tmp_path / "data" / "VOC2007"
    for folder in ("Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    (root / "Annotations" / "000001.xml").write_text(voc_xml(("dog", 0), ("person", 1)))
    (root / "Annotations" / "000002.xml").write_text(voc_xml(("car", 0), ("car", 1), ("car", 0)))
    (root / "ImageSets" / "Main" / "trainval.txt").write_text("000002\n000001\n")
    (root / "ImageSets" / "Main" / "test.txt").write_text("000002\n")
    for name in ("000001", "000002"):
        photo(root / "JPEGImages" / f"{name}.jpg")
    return root


def test_voc_marks_difficult_objects_as_unsure(voc: Path) -> None:
    rows = load_voc(voc)
    dog, person, car = (rows.classes.index(name) for name in ("dog", "person", "car"))
    assert rows.labels[0].nonzero()[0].tolist() == [dog]
    assert not rows.known[0, person] and rows.known[0, dog]
    assert rows.labels[1, car] == 1 and rows.known[1, car]
    assert rows[0][0].shape == (8, 8, 3)


def test_voc_splits_follow_its_lists(voc: Path) -> None:
    assert data.load("voc2007", "train").names.tolist() == ["000002", "000001"]
    assert data.load("voc2007", "test").names.tolist() == ["000002"]
    (voc / "ImageSets" / "Main" / "test.txt").write_text("../../../etc/passwd\n")
    with pytest.raises(HostileFile, match="outside"):
        load_voc(voc, split="test")


LAUGHS = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS + "<annotation><object><name>&b;</name></object></annotation>",
        '<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>',
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>',
        "<annotation><object><name>dog</name></object>",
        "<annotation><object></object></annotation>",
        "<a>" * 100 + "</a>" * 100,
        "",
        "not xml",
        "<annotation>\0</annotation>",
    ],
)
def test_hostile_xml_is_refused(text: str, tmp_path: Path, little_memory) -> None:
    path = tmp_path / "x.xml"
    path.write_text(text)
    with little_memory(4), pytest.raises(HostileFile):
        read_voc_objects(path)


def test_unknown_classes_and_missing_folders_are_refused(voc: Path, tmp_path: Path) -> None:
    (voc / "Annotations" / "000001.xml").write_text(voc_xml(("unicorn", 0)))
    with pytest.raises(HostileFile, match="20 classes"):
        load_voc(voc)
    with pytest.raises(MissingData, match="Annotations"):
        load_voc(tmp_path / "nothing")


COCO = {
    "info": {"year": 2017, "nested": [1, [2, {"a": "]}"}]]},
    "licenses": [{"id": 1}] * 3,
    "images": [{"id": 9, "file_name": "b.jpg", "height": 1}, {"id": 3, "file_name": "a.jpg"}],
    "annotations": [
        {"image_id": 9, "category_id": 7, "segmentation": [[1.5] * 50], "bbox": [1, 2, 3, 4]},
        {"image_id": 9, "category_id": 7},
        {"image_id": 3, "category_id": 2},
    ],
    "categories": [{"id": 2, "name": "zebra"}, {"id": 7, "name": "ant"}],
}


def coco_file(folder: Path, **changes: object) -> Path:
    path = folder / "instances.json"
    path.write_text(json.dumps({**COCO, **changes}))
    return path


def test_coco_labels_come_by_name_or_by_id(tmp_path: Path) -> None:
    rows = load_coco(coco_file(tmp_path))
    assert rows.classes == ("ant", "zebra") and rows.names.tolist() == ["a.jpg", "b.jpg"]
    assert rows.labels.tolist() == [[0, 1], [1, 0]]
    assert load_coco(coco_file(tmp_path), order="id").classes == ("zebra", "ant")
    photo(tmp_path / "a.jpg")
    assert load_coco(coco_file(tmp_path), tmp_path)[0][0].shape == (8, 8, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"images": []},
        {"categories": []},
        {"images": [{"file_name": "a.jpg"}]},
        {"images": ["a.jpg"]},
        {"images": [{"id": True, "file_name": "a.jpg"}]},
        {"annotations": [{"image_id": 5, "category_id": 2}]},
        {"annotations": [{"image_id": "9", "category_id": 2}]},
    ],
)
def test_coco_entries_that_make_no_sense_are_refused(
    changes: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(HostileFile):
        load_coco(coco_file(tmp_path, **changes))


@pytest.mark.parametrize(
    "name", ["../secret.jpg", "/etc/passwd", "a/../../b.jpg", "C:\\x.jpg", "..\\x.jpg", ""]
)
def test_file_names_in_annotations_cannot_leave_their_folder(name: str, tmp_path: Path) -> None:
    path = coco_file(
        tmp_path, images=[{"id": 9, "file_name": name}, {"id": 3, "file_name": "a.jpg"}]
    )
    with pytest.raises(HostileFile, match="outside"):
        load_coco(path, tmp_path)


def test_truncated_or_deep_json_is_refused(tmp_path: Path) -> None:
    path = coco_file(tmp_path)
    whole = path.read_text()
    for text in (
        whole[:-1],
        whole[:200],
        "",
        "[]",
        "{",
        '{"images": [' + "[" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
    ):
        path.write_text(text)
        with pytest.raises(HostileFile):
            load_coco(path)


def test_large_json_is_streamed(tmp_path: Path, little_memory) -> None:
    path = tmp_path / "large.json"
    outline = json.dumps({"counts": "x" * 2700})
    with path.open("w") as stream:
        stream.write(
            '{"images": [{"id": 1, "file_name": "a.jpg"}], "categories": [{"id": 1, "name": "a"}],'
        )
        stream.write('"annotations": [')
        for i in range(10_000):
            stream.write(
                f'{"," if i else ""}{{"image_id": 1, "category_id": 1, "segmentation": {outline}}}'
            )
        stream.write("]}")
    assert path.stat().st_size > 25 << 20
    with little_memory(8):
        assert load_coco(path).labels.tolist() == [[1]]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=5), st.integers(0, 3))
def test_streaming_agrees_with_the_json_module(
    tmp_path_factory, value: dict[str, object], indent: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "stream.json"
    path.write_text(json.dumps(value, indent=indent or None))
    wanted = {key for key, inner in value.items() if isinstance(inner, list)}
    found = list(stream_lists(path, wanted))
    assert found == [(key, element) for key in value if key in wanted for element in value[key]]


@pytest.fixture
def celeba(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "celeba"
    folder.mkdir(parents=True)
    (folder / "list_attr_celeba.txt").write_text(
        "3\nBald Young\n1.jpg -1  1\n2.jpg  1 -1\n3.jpg -1 -1\n"
    )
    (folder / "list_eval_partition.txt").write_text("1.jpg 0\n2.jpg 2\n3.jpg 1\n")
    return folder


def test_celeba_attributes_become_labels(celeba: Path) -> None:
    rows = load_celeba(celeba / "list_attr_celeba.txt")
    assert rows.classes == ("Bald", "Young") and rows.labels.tolist() == [[0, 1], [1, 0], [0, 0]]
    assert data.load("celeba", "test").names.tolist() == ["2.jpg"]
    photo(celeba / "img_align_celeba" / "1.jpg")
    assert data.load("celeba", "train")[0][0].shape == (8, 8, 3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "many\nBald\n1.jpg 1\n",
        "3\nBald\n1.jpg 1\n",
        "999999999\nBald\n1.jpg 1\n",
        "-1\nBald\n1.jpg 1\n",
        "1\nBald\n1.jpg 2\n",
        "1\nBald\n1.jpg 1 1\n",
        "1\nBald\n1.jpg 1\n2.jpg 1\n",
        "1\nBald\n" + "x" * 100_000,
    ],
)
def test_broken_attribute_lists_are_refused(text: str, tmp_path: Path, little_memory) -> None:
    path = tmp_path / "list.txt"
    path.write_text(text)
    with little_memory(4), pytest.raises(HostileFile):
        load_celeba(path)


def test_label_lists_of_hashing_papers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "database.txt"
    path.write_text("images/1.jpg 0 1 1\nimages/2.jpg 1 0 0\n")
    rows = load_label_list(path)
    assert rows.labels.tolist() == [[0, 1, 1], [1, 0, 0]] and rows.names[1] == "images/2.jpg"
    for text in ("", "only-a-name\n", "a.jpg 0 1\nb.jpg 0\n", "a.jpg 0 5\n", "a.jpg 0 \0\n"):
        path.write_text(text)
        with pytest.raises(HostileFile):
            load_label_list(path)
    path.write_text("../../a.jpg 0 1\n")
    with pytest.raises(HostileFile, match="outside"):
        load_label_list(path, tmp_path)


def test_nus_wide_is_read_as_published(tmp_path: Path) -> None:
    root = tmp_path / "data" / "nus-wide"
    for folder in (
        "ConceptsList",
        "ImageList",
        "Groundtruth/AllLabels",
        "Groundtruth/TrainTestLabels",
    ):
        (root / folder).mkdir(parents=True)
    (root / "ConceptsList" / "Concepts81.txt").write_text("sky\nsea\n")
    (root / "ImageList" / "Imagelist.txt").write_text("actor\\0001_1.jpg\nbird\\0002_2.jpg\n")
    (root / "ImageList" / "TestImagelist.txt").write_text("bird\\0002_2.jpg\n")
    for concept, values in (("sky", "1\n0\n"), ("sea", "1\n1\n")):
        (root / "Groundtruth" / "AllLabels" / f"Labels_{concept}.txt").write_text(values)
        (root / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_Test.txt").write_text(
            values[2:]
        )
    rows = data.load("nus-wide")
    assert rows.labels.tolist() == [[1, 1], [0, 1]] and rows.names[0] == "actor/0001_1.jpg"
    assert load_nuswide(root, split="test").labels.tolist() == [[0, 1]]
    (root / "Groundtruth" / "AllLabels" / "Labels_sea.txt").write_text("1\n")
    with pytest.raises(HostileFile, match="0 or 1"):
        load_nuswide(root)
    (root / "Groundtruth" / "AllLabels" / "Labels_sea.txt").unlink()
    with pytest.raises(MissingData, match="Labels_sea"):
        load_nuswide(root)

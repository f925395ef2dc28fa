"""What words are taken to mean, with a class list and vectors of the test's own."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from blindsight.core.errors import HostileFile, InvalidParameter, MissingData, MissingDependency
from blindsight.encoders import words
from blindsight.encoders.words import sentence_vectors


@pytest.fixture(autouse=True)
def three_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Violin, cello and zebra at right angles; a text is the vector that its letters name."""
    texts = {
        "a violin": (0.95, 0.3, 0.08),
        "strings": (0.7, 0.7, 0.1),
        "a giraffe": (0.3, 0.29, 0.45),
    }
    monkeypatch.setattr(words, "class_names", lambda: ("violin", "cello", "zebra"))
    monkeypatch.setattr(words, "class_vectors", lambda: np.eye(3, dtype=np.float32))
    names = {"violin": (1, 0, 0), "cello": (0, 1, 0), "zebra": (0, 0, 1)}
    vectors = {**texts, **names, "grass": (0.1, 0.1, 0.3), "zebra on grass": (0, 0.1, 0.9)}
    below = {"violin": (0,), "string": (0, 1), "grass": (), "xylem": ()}
    monkeypatch.setattr(
        words, "sentence_vectors", lambda given: np.array([vectors[t] for t in given], np.float32)
    )
    monkeypatch.setattr(words, "_nouns", lambda: (("grass",), below))
    monkeypatch.setattr(words, "_vocabulary", lambda: frozenset({"giraffe"}))


def test_the_classes_that_carry_the_weight_are_named_best_first() -> None:
    assert words.understood("a violin") == words.Understood(("violin",), known=True)
    assert words.understood("strings").names == ("string",)
    assert words.class_weights("strings").sum() == pytest.approx(1)


def test_words_that_no_class_says_are_told_so() -> None:
    meaning = words.understood("a giraffe")
    assert meaning.names == ("zebra",)
    assert not meaning.known
    assert "no class of that name" in meaning.line()
    assert "no class" not in words.understood("a violin").line()


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="must say something"):
        words.understood("  ")


def test_a_noun_gives_weight_to_every_class_below_it() -> None:
    weight = words.class_weights("strings")
    assert weight[:2].sum() > 0.95 and weight[0] == pytest.approx(weight[1], rel=1e-4)


def test_what_was_ignored_is_said() -> None:
    meaning = words.understood("zebra on grass")
    assert meaning.names == ("zebra",) and meaning.ignored == ("grass",)
    assert meaning.line() == "searched for: zebra (ignored: grass)"


def test_nonsense_is_searched_for_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    near = np.array([[0.9, 0.1, 0.1]], np.float32)
    monkeypatch.setattr(words, "sentence_vectors", lambda given: np.repeat(near, len(given), 0))
    meaning = words.understood("xqzt blorf")
    assert meaning.names == () and meaning.unknown == ("xqzt", "blorf") and not meaning.known
    assert "Nothing can be searched for" in meaning.line()


def test_other_languages_come_through_a_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "german.txt"
    path.write_text("# German\nHund = dog\nEisbär\tpolar bear\n", encoding="utf-8")
    dictionary = words.read_dictionary(path)
    assert words.translated("Hund und Eisbär", dictionary) == "dog und polar bear"
    path.write_text("Hund\n", encoding="utf-8")
    with pytest.raises(HostileFile, match="line 1"):
        words.read_dictionary(path)


def test_the_noun_list_is_whole() -> None:
    """The file as shipped: every class is below some noun, and no number is out of range."""
    text = (Path(words.__file__).parent / "nouns.txt").read_text(encoding="utf-8")
    assert "WordNet" in text.splitlines()[0]
    numbers: set[int] = set()
    for line in text.splitlines()[1:]:
        for part in filter(None, line.partition("\t")[2].split(",")):
            first, _, last = part.partition("-")
            numbers |= set(range(int(first), int(last or first) + 1))
    assert numbers == set(range(1000))


def _small_minilm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """Two small files in the place of MiniLM's, with their own checksums, and no registry."""
    files = {"minilm.safetensors": b"weights", "tokenizer.json": b"{}"}
    members = tuple(
        replace(member, sha256=hashlib.sha256(files[member.name]).hexdigest())
        for member in words.WORDS[0].members
    )
    known = (replace(words.WORDS[0], members=members), words.WORDS[1])
    monkeypatch.setattr(words, "WORDS", known)
    monkeypatch.setenv("BLINDSIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BLINDSIGHT_WEIGHTS", raising=False)
    monkeypatch.delenv("BLINDSIGHT_OFFLINE", raising=False)

    def unreachable(name: str, **_: object) -> Path:
        raise MissingData(f"{name}: no network.")

    monkeypatch.setattr(words, "get", unreachable)
    return files


def test_nothing_is_fetched_where_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched() -> Path:
        raise AssertionError("the sentence vectors were asked for")

    monkeypatch.setattr(words, "minilm_folder", fetched)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    words._tower.cache_clear()
    with pytest.raises(MissingDependency, match=r"blindsight\[words\]"):
        sentence_vectors(["a dog"])


def test_sentence_vectors_come_from_a_folder_of_one_s_own_by_checksum(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = _small_minilm(monkeypatch, tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setenv("BLINDSIGHT_WEIGHTS", str(tmp_path))
    assert words.minilm_folder() == tmp_path
    (tmp_path / "tokenizer.json").write_bytes(b"[]")
    with pytest.raises(HostileFile, match="not the known file"):
        words.minilm_folder()


def test_sentence_vectors_come_from_the_hub_where_no_package_can_be_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = _small_minilm(monkeypatch, tmp_path)
    published = {"model.safetensors": files["minilm.safetensors"], "tokenizer.json": b"{}"}

    def download(model: str, name: str, *, local_dir: str) -> str:
        assert model == "sentence-transformers/all-MiniLM-L6-v2"
        path = Path(local_dir, name)
        path.write_bytes(published[name])
        return str(path)

    hub = SimpleNamespace(hf_hub_download=download)
    monkeypatch.setattr(words, "optional_module", lambda *_, **__: hub)
    monkeypatch.setattr(words, "find_spec", lambda name: object())
    folder = words.minilm_folder()
    said = capsys.readouterr().err
    assert "Hugging Face hub" in said and "91.3 MB" in said and str(folder) in said
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert words.minilm_folder() == folder
    assert capsys.readouterr().err == ""


def test_a_file_of_the_hub_that_was_changed_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _small_minilm(monkeypatch, tmp_path)

    def download(model: str, name: str, *, local_dir: str) -> str:
        path = Path(local_dir, name)
        path.write_bytes(b"changed")
        return str(path)

    hub = SimpleNamespace(hf_hub_download=download)
    monkeypatch.setattr(words, "optional_module", lambda *_, **__: hub)
    monkeypatch.setattr(words, "find_spec", lambda name: object())
    with pytest.raises(HostileFile, match="not the known file"):
        words.minilm_folder()
    assert not (tmp_path / "cache" / "sets" / "sentence-vectors-hub").exists()

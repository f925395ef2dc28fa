"""Labels from files of users: spreadsheets, lists, one column per label, keywords inside photos.

| source | recognised by |
|---|---|
| CSV, TSV, semicolons, any of UTF-8, UTF-16 and Windows-1252 | the file's text |
| Excel | `.xlsx` (extra `tables`) |
| Parquet | `.parquet` (extra `tables`) |
| COCO annotations, Label Studio's export, `{name: labels}`, lists of records | `.json`, `.jsonl` |
| lists without a line that names the columns: a photo and its labels | the first line |
| one column per label, with 0/1, yes/no, x or nothing in it | the values |
| folders as labels | the word `folders` |
| keywords inside the photos and in sidecars (XMP, IPTC) | the word `keywords` |

Names in a table are matched with the photos of a folder whatever their slashes, their Unicode form
and, where that is unambiguous, their case and their folder. What cannot be matched is listed, and
stops nothing.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from blindsight.core.checks import optional_module
from blindsight.core.errors import InvalidData, MissingData
from blindsight.data.limits import LIMITS, Limits, read_bytes
from blindsight.data.listing import shown_name
from blindsight.data.reading import SUFFIXES
from blindsight.data.tag_files import photo_keywords

__all__ = ["LabelTable", "TableRows", "read_column", "read_label_table", "read_table"]

_MOST_TABLE_BYTES = 256 << 20
_PHOTO_COLUMNS = (
    *("image", "filename", "file_name", "file", "path", "photo", "picture", "img", "image_path"),
    *("image_name", "image_id", "image index", "image_url", "url", "name", "id"),
    *("dateiname", "datei", "bild", "foto", "fichier", "archivo"),
)
_LABEL_COLUMNS = (
    *("labels", "label", "tags", "tag", "keywords", "keyword", "classes", "class", "categories"),
    *("category", "finding", "findings", "finding labels", "subject", "subjects", "label_name"),
    *("labelname", "choice", "choices", "schlagwörter", "schlagworte", "stichwörter"),
    *("mots-clés", "étiquettes", "etiquetas"),
)
_YES = frozenset({"1", "1.0", "true", "yes", "y", "x", "t"})
_NO = frozenset({"0", "0.0", "false", "no", "n", "", "f", "-1", "-1.0"})
_DELIMITERS = (",", ";", "\t", "|")
_ORIGINAL_NAME = re.compile(r"^[0-9a-f]{8}-(.+)$")


@dataclass(frozen=True)
class TableRows:
    """A table of text: the names of its columns, and rows of as many cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    name: str = field(default="the table", repr=False)

    def column(self, name: str) -> int:
        """The position of a column, found by its name whatever the case.

        Raises:
            InvalidData: No column has this name.
        """
        plain = [column.strip().casefold() for column in self.columns]
        if name.strip().casefold() in plain:
            return plain.index(name.strip().casefold())
        raise InvalidData(
            f"{self.name} has no column {name!r}. It has: {', '.join(self.columns) or 'none'}."
        )


@dataclass(frozen=True)
class LabelTable:
    """The labels of the photos in a folder.

    Attributes:
        labels: the labels of each photo, by the photo's name in the folder.
        missing: names in the table that no photo of the folder has.
        ambiguous: names in the table that several photos of the folder could have.
        source: what was read, in words.
    """

    labels: dict[str, frozenset[str]]
    missing: tuple[str, ...]
    ambiguous: tuple[str, ...]
    source: str


def read_label_table(
    source: str | os.PathLike[str],
    folder: Path,
    photos: Sequence[str],
    *,
    limits: Limits = LIMITS,
) -> LabelTable:
    """Read the labels of a folder's photos.

    Parameters:
        source: A file (see the module's table), `FILE:COLUMN` to name the column with the labels,
            or one of the words `folders` and `keywords`.
        folder: the folder with the photos.
        photos: the photos' names, relative to the folder.
        limits: bounds on the size of the table.

    Returns:
        LabelTable

    Raises:
        InvalidData: The file has no column with photos or with labels, or no photo has a label.
        MissingData: The file does not exist, or none of the photos that it names is in the folder.
    """
    text = os.fspath(source)
    if text == "folders":
        labels = {name: frozenset(name.split("/")[:-1]) for name in photos}
        return _checked(LabelTable(labels, (), (), "the names of the folders"))
    if text == "keywords":
        labels = {name: frozenset(photo_keywords(folder / name)) for name in photos}
        return _checked(LabelTable(labels, (), (), "keywords inside the photos"))
    path, column = _file_and_column(text)
    if not path.is_file():
        raise MissingData(f"{path} does not exist. Check the path.")
    suffix = path.suffix.lower()
    if suffix in (".json", ".jsonl"):
        named = _json_labels(path, limits)
    elif suffix == ".xml":
        raise InvalidData(
            f"{path.name} is XML, which holds the labels of one photo. Export them as CSV, or as "
            "COCO or Label Studio JSON."
        )
    else:
        listed = None if column is not None else _list_labels(path, photos, limits)
        named = listed or _table_labels(read_table(path, limits=limits), column, path.name)
    return _checked(_matched(named, photos, path.name))


def read_column(source: str, photos: Sequence[str], *, option: str) -> dict[str, str]:
    """Read one column of a table: a value for each photo that it names, a person for instance.

    Parameters:
        source: `FILE:COLUMN`; the file is any table that `read_table` reads.
        photos: the photos' names, relative to their folder.
        option: what the column was asked for by, for messages.

    Returns:
        the cells by the photos' names; photos without a cell are left out.

    Raises:
        InvalidData: The file is not such a table or lacks the column, a name means several photos,
            or a photo has two different values.
    """
    path, column = _file_and_column(source)
    if column is None:
        raise InvalidData(
            f"{option} must be FILE:COLUMN with an existing table as FILE, got {source!r}."
        )
    table = read_table(path)
    chosen = table.column(column)
    photo = _photo_column(table, chosen)
    candidates = _candidates(photos)
    values: dict[str, str] = {}
    for row in table.rows:
        matches = candidates(row[photo])
        if len(matches) > 1:
            raise InvalidData(
                f"{path.name} names {row[photo]!r}, which may be {len(matches)} photos: "
                f"{shown_name(matches[0])} and {shown_name(matches[1])}. Write its whole path in "
                "the folder."
            )
        if not matches or not row[chosen]:
            continue
        if values.setdefault(matches[0], row[chosen]) != row[chosen]:
            raise InvalidData(
                f"{path.name} gives {shown_name(matches[0])} two values in column {column!r}. Keep "
                "one row for each photo."
            )
    return values


def read_table(path: Path, *, limits: Limits = LIMITS) -> TableRows:
    """Read a table of text, whatever program wrote it.

    Parameters:
        path: A file in CSV (any of the usual delimiters and encodings), Excel or Parquet.

    Returns:
        TableRows

    Raises:
        InvalidData: The file is not such a table, or is larger than the limits.

    Examples:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "labels.csv"
        >>> _ = file.write_bytes("sep=;\\r\\nDatei;Tags\\r\\na.jpg;dog\\r\\n".encode("utf-16"))
        >>> read_table(file)
        TableRows(columns=('Datei', 'Tags'), rows=(('a.jpg', 'dog'),))
    """
    suffix = path.suffix.lower()
    if suffix == ".xlsx":
        lines: Iterable[Sequence[str]] = _excel(path, limits)
    elif suffix in (".parquet", ".pq"):
        lines = _parquet(path, limits)
    elif suffix == ".xls":
        raise InvalidData(f"{path.name} is in Excel's old format. Save it as .xlsx or CSV.")
    else:
        lines = _delimited(path)
    return _rectangular(lines, path.name, limits)


def _rectangular(lines: Iterable[Sequence[str]], name: str, limits: Limits) -> TableRows:
    rows: list[tuple[str, ...]] = []
    columns: tuple[str, ...] = ()
    for number, cells in enumerate(lines, 1):
        if not any(cell.strip() for cell in cells):
            continue
        if not columns:
            columns = tuple(cell.strip() for cell in cells)
            if len(columns) > limits.columns:
                raise InvalidData(f"{name} has {len(columns):,} columns, too many.")
            continue
        if any(cell.strip() for cell in cells[len(columns) :]):
            raise InvalidData(
                f"line {number} of {name} has {len(cells)} columns instead of {len(columns)}. Put "
                "a cell that contains the delimiter in quotes."
            )
        padded = (*cells, *[""] * (len(columns) - len(cells)))[: len(columns)]
        rows.append(tuple(cell.strip() for cell in padded))
        if len(rows) > limits.rows:
            raise InvalidData(f"{name} has more than {limits.rows:,} rows.")
    if not columns:
        raise InvalidData(f"{name} is empty. Its first line must name the columns.")
    return TableRows(columns, tuple(rows), name)


def _delimited(path: Path) -> Iterator[list[str]]:
    text = _decoded(read_bytes(path, largest=_MOST_TABLE_BYTES), path.name)
    first, _, rest = text.partition("\n")
    while first.startswith("#"):  # remarks of the program that wrote the file
        after = rest.partition("\n")[0]
        marks = [_outside_quotes(first, mark) for mark in _DELIMITERS]
        if any(marks) and marks == [_outside_quotes(after, mark) for mark in _DELIMITERS]:
            first = first[1:]  # the names of the columns
            text = f"{first}\n{rest}"
            break
        text = rest
        first, _, rest = text.partition("\n")
    if re.fullmatch(r"sep=.\r?", first):
        delimiter, text = first[4], rest
    else:
        delimiter = max(_DELIMITERS, key=lambda mark: _outside_quotes(first, mark))
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        yield from lines
    except csv.Error as error:
        raise InvalidData(
            f"line {lines.line_num} of {path.name} cannot be read ({error}). Check its quotes."
        ) from None


def _outside_quotes(line: str, mark: str) -> int:
    return re.sub(r'"[^"]*"', "", line).count(mark)


def _decoded(data: bytes, name: str) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encodings: tuple[str, ...] = ("utf-16",)
    elif data[1:2] == b"\x00" or data[:1] == b"\x00":
        encodings = ("utf-16-le" if data[1:2] == b"\x00" else "utf-16-be",)
    else:
        encodings = ("utf-8-sig", "cp1252")  # Excel's "CSV" on Windows is in the latter
    for encoding in encodings:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\x00" not in text:
            return text
    raise InvalidData(f"{name} is not a table of text. Save it as CSV in UTF-8.")


def _excel(path: Path, limits: Limits) -> Iterator[list[str]]:
    openpyxl = optional_module("openpyxl", extra="tables")
    data = read_bytes(path, largest=_MOST_TABLE_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as members:
            if sum(member.file_size for member in members.infolist()) > limits.unpacked_bytes:
                raise InvalidData(f"{path.name} unpacks to more than the limits allow.")
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        for row in book.worksheets[0].iter_rows(values_only=True):
            yield ["" if cell is None else _cell(cell) for cell in row]
    except InvalidData:
        raise
    except Exception as error:  # a reader fed hostile bytes raises anything
        raise InvalidData(
            f"{path.name} is not an Excel file that can be read ({type(error).__name__}). Save it "
            "again, or as CSV."
        ) from None


def _cell(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _parquet(path: Path, limits: Limits) -> Iterator[list[str]]:
    parquet = optional_module("pyarrow.parquet", extra="tables")
    read_bytes(path, largest=_MOST_TABLE_BYTES)
    try:
        file = parquet.ParquetFile(path)
        if file.metadata.num_rows > limits.rows:
            raise InvalidData(f"{path.name} has more than {limits.rows:,} rows.")
        yield list(file.schema_arrow.names)
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                yield [_parquet_cell(value) for value in row.values()]
    except InvalidData:
        raise
    except Exception as error:  # a reader fed hostile bytes raises anything
        raise InvalidData(
            f"{path.name} is not a Parquet file that can be read ({type(error).__name__})."
        ) from None


def _parquet_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ";".join(str(part) for part in value)
    return _cell(value)


def _table_labels(table: TableRows, column: str | None, name: str) -> dict[str, set[str]]:
    labels: dict[str, set[str]] = defaultdict(set)
    photo = _photo_column(table, None if column is None else table.column(column))
    if column is not None:
        chosen = [table.column(column)]
    else:
        plain = [each.casefold() for each in table.columns]
        chosen = [plain.index(each) for each in _LABEL_COLUMNS if each in plain][:1]
    if chosen:
        split = _splitter([row[chosen[0]] for row in table.rows])
        for row in table.rows:
            labels[row[photo]] |= split(row[chosen[0]])
        return labels
    marked = _indicator_columns(table, photo)
    if not marked:
        raise InvalidData(
            f"{name} has no column with labels: {', '.join(table.columns)}. Name one with "
            f"{name}:COLUMN, call it labels, or give each label a column of 0 and 1."
        )
    for row in table.rows:
        labels[row[photo]] |= {
            _plain(table.columns[position])
            for position in marked
            if row[position].casefold() in _YES
        }
    return labels


def _list_labels(path: Path, photos: Sequence[str], limits: Limits) -> dict[str, set[str]] | None:
    """The labels of a list whose first line is a photo already; None for a table with a header.

    What follows the photo's name on its line are its labels.
    """
    if path.suffix.lower() in (".xlsx", ".xls", ".parquet", ".pq"):
        return None
    candidates = _candidates(photos)

    def photo_at(cells: Sequence[str]) -> int | None:
        endings = (os.path.splitext(cell.strip())[1].lower() in SUFFIXES for cell in cells)
        places = [
            position
            for position, (cell, ends) in enumerate(zip(cells, endings, strict=True))
            if ends and candidates(cell.strip())
        ]
        return places[0] if places else None

    labels: dict[str, set[str]] = defaultdict(set)
    at: int | None = None
    for number, line in enumerate(_delimited(path)):
        cells = line[0].rsplit(maxsplit=1) if len(line) == 1 else line
        if not any(cell.strip() for cell in cells):
            continue
        if at is None and (at := photo_at(cells)) is None:
            return None
        if number > limits.rows:
            raise InvalidData(f"{path.name} has more than {limits.rows:,} rows.")
        if len(cells) > at:
            words = labels[cells[at].strip()]
            words |= {level for cell in cells[at + 1 :] for level in _splitter([cell])(cell)}
    return dict(labels)


def _photo_column(table: TableRows, chosen: int | None) -> int:
    """The column with the photos' names: by its own name, else the first one; not the chosen."""
    plain = [column.casefold() for column in table.columns]
    if chosen is not None:
        plain[chosen] = ""
    first = 1 if chosen == 0 and len(plain) > 1 else 0
    return next((plain.index(name) for name in _PHOTO_COLUMNS if name in plain), first)


def _indicator_columns(table: TableRows, photo: int) -> list[int]:
    """The columns that hold nothing but yes and no.

    Beside columns of other kinds there must be two that hold both: a single one may be a count, or
    say that a row was checked.
    """
    others = [position for position in range(len(table.columns)) if position != photo]
    values = {position: {row[position].casefold() for row in table.rows} for position in others}
    marked = [
        position for position in others if values[position] and values[position] <= _YES | _NO
    ]
    varied = [position for position in marked if values[position] & _YES and values[position] & _NO]
    return marked if marked == others or len(varied) > 1 else []


def _splitter(cells: Sequence[str]) -> Callable[[str], set[str]]:
    """Return the function that splits a cell: by semicolons if any cell has one, else by commas."""
    mark = ";" if any(";" in cell for cell in cells) else ","

    def split(cell: str) -> set[str]:
        words = cell.strip().strip("[]").replace("'", "") if cell.startswith("[") else cell
        parts = [_plain(word) for word in words.split(mark)]
        return {level for part in parts for level in _levels(part)} - {""}

    return split


def _levels(label: str) -> list[str]:
    """All levels of a hierarchical label: `animal|dog` is an animal and a dog."""
    return [_plain(level) for level in label.split("|")]


def _plain(label: str) -> str:
    return " ".join(unicodedata.normalize("NFC", label.strip().strip('"')).split())


def _json_labels(path: Path, limits: Limits) -> dict[str, set[str]]:
    try:
        data = read_bytes(path, largest=_MOST_TABLE_BYTES)
        if path.suffix.lower() == ".jsonl":
            content = [json.loads(line) for line in data.splitlines() if line.strip()]
        else:
            content = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidData(f"{path.name} is not JSON.") from None
    try:
        if isinstance(content, dict) and {"images", "categories", "annotations"} <= content.keys():
            return _coco_labels(content)
        if isinstance(content, list) and content and "data" in content[0]:
            return _label_studio_labels(content)
        if isinstance(content, list):
            return _record_labels(content)
        if isinstance(content, dict) and {type(words) for words in content.values()} in (
            {str},
            {list},
            {str, list},
        ):
            return {name: _words(words) for name, words in content.items()}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration):
        raise InvalidData(
            f"{path.name} lacks a field that its format requires: each record needs one for the "
            "photo (image) and one for its labels (labels)."
        ) from None
    raise InvalidData(
        f"{path.name} is neither COCO annotations (images, annotations, categories), nor a list of "
        "Label Studio's tasks, nor an object of photos' names with their labels."
    )


def _record_labels(records: list[Any]) -> dict[str, set[str]]:
    """Labels of a list of objects with a field for the photo and one for its labels."""
    labels: dict[str, set[str]] = defaultdict(set)
    for record in records:
        fields = {str(key).casefold(): value for key, value in record.items()}
        name = next(fields[key] for key in _PHOTO_COLUMNS if key in fields)
        labels[str(name)] |= next(_words(fields[key]) for key in _LABEL_COLUMNS if key in fields)
    return labels


def _words(value: object) -> set[str]:
    """Labels in JSON: a text, a list, or Label Studio's object of choices."""
    if isinstance(value, dict):
        value = value["choices"]
    words = value if isinstance(value, list) else [value]
    return {level for word in words for level in _levels(str(word))} - {""}


def _coco_labels(content: dict[str, Any]) -> dict[str, set[str]]:
    names = {image["id"]: str(image["file_name"]) for image in content["images"]}
    categories = {each["id"]: _plain(str(each["name"])) for each in content["categories"]}
    labels: dict[str, set[str]] = {name: set() for name in names.values()}
    for annotation in content["annotations"]:
        labels[names[annotation["image_id"]]].add(categories[annotation["category_id"]])
    return labels


def _label_studio_labels(tasks: list[Any]) -> dict[str, set[str]]:
    """Choices of Label Studio's tasks; uploads are called by eight hexadecimal digits and name."""
    labels: dict[str, set[str]] = {}
    for task in tasks:
        address = str(task["data"]["image"])
        name = address.rsplit("?d=", 1)[-1] if "?d=" in address else address.rsplit("/", 1)[-1]
        name = unquote(name)
        if (original := _ORIGINAL_NAME.match(name)) is not None and "?d=" not in address:
            name = original[1]
        words = labels.setdefault(name, set())
        # Predicted tags count only where nobody has annotated the task.
        for answer in (task.get("annotations") or task.get("predictions") or ())[:1]:
            for result in answer["result"]:
                value = result["value"]
                chosen = value.get("choices", value.get("rectanglelabels", ()))
                words |= {_plain(str(choice)) for choice in chosen}
    return labels


def _file_and_column(text: str) -> tuple[Path, str | None]:
    """Split FILE:COLUMN; a path may have colons of its own, and exists then as it is."""
    if Path(text).exists() or ":" not in text:
        return Path(text), None
    file, _, column = text.rpartition(":")
    return (Path(file), column) if Path(file).is_file() else (Path(text), None)


def _candidates(photos: Sequence[str]) -> Callable[[str], list[str]]:
    """A function from a name in a table to the photos that it may mean.

    Photos are found exactly, then by Unicode form, case, last part, and last part without ending.
    """
    keys: tuple[Callable[[str], str], ...] = (
        lambda name: name,
        _slashes,
        lambda name: _slashes(name).casefold(),
        lambda name: _slashes(name).rsplit("/", 1)[-1].casefold(),
        lambda name: os.path.splitext(_slashes(name).rsplit("/", 1)[-1].casefold())[0],
    )
    indexes: list[dict[str, list[str]]] = []
    for key in keys:
        index: dict[str, list[str]] = defaultdict(list)
        for photo in photos:
            index[key(photo)].append(photo)
        indexes.append(index)

    def candidates(name: str) -> list[str]:
        matches = (index.get(key(name)) for key, index in zip(keys, indexes, strict=True))
        best = next((photos for photos in matches if photos), [])
        # Label Studio puts eight hexadecimal digits before the names of uploads.
        original = _ORIGINAL_NAME.match(_slashes(name).rsplit("/", 1)[-1])
        return candidates(original[1]) if not best and original is not None else best

    return candidates


def _matched(named: dict[str, set[str]], photos: Sequence[str], source: str) -> LabelTable:
    candidates = _candidates(photos)
    labels: dict[str, frozenset[str]] = {}
    missing: list[str] = []
    ambiguous: list[str] = []
    for name, words in named.items():
        matches = candidates(name)
        if len(matches) == 1:
            [photo] = matches
            labels[photo] = labels.get(photo, frozenset()) | words
        elif matches:
            ambiguous.append(name)
        else:
            missing.append(name)
    if not labels:
        example = repr(missing[0]) if missing else "no name"
        raise MissingData(
            f"none of the {len(named)} photos that {source} names is in the folder: {example}, for "
            "example. Names are relative to the folder with the photos."
        )
    return LabelTable(labels, tuple(missing), tuple(ambiguous), source)


def _slashes(name: str) -> str:
    return unicodedata.normalize("NFC", name.replace("\\", "/")).removeprefix("./")


def _checked(table: LabelTable) -> LabelTable:
    if not any(table.labels.values()):
        raise InvalidData(
            f"no photo has a label in {table.source}: there is nothing to learn from."
        )
    return table

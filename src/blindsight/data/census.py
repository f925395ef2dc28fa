"""The tables of the metric paper: UCI Adult and UCI Bank, with encodings fixed by their public code
books.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blindsight.core.checks import one_of
from blindsight.core.errors import HostileFile
from blindsight.data.formats.csvtable import Column, class_numbers, encode, read_rows, read_text
from blindsight.data.limits import LIMITS, Limits
from blindsight.data.sets import Table

__all__ = ["ADULT", "BANK", "load_adult", "load_bank", "load_numbers"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


# Categories come from adult.names and bank-names, not from the records: encoding reveals nothing.
ADULT = (
    Column("age"),
    Column(
        "workclass",
        _words(
            "Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, "
            "Without-pay, Never-worked"
        ),
    ),
    Column("fnlwgt"),
    Column(
        "education",
        _words(
            "Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, "
            "7th-8th, 12th,"
            "Masters, 1st-4th, 10th, Doctorate, 5th-6th, Preschool"
        ),
    ),
    Column("education-num"),
    Column(
        "marital-status",
        _words(
            "Married-civ-spouse, Divorced, Never-married, Separated, Widowed, "
            "Married-spouse-absent,Married-AF-spouse"
        ),
    ),
    Column(
        "occupation",
        _words(
            "Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty,"
            "Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving,"
            "Priv-house-serv, Protective-serv, Armed-Forces"
        ),
    ),
    Column(
        "relationship", _words("Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried")
    ),
    Column("race", _words("White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black")),
    Column("sex", _words("Female, Male")),
    Column("capital-gain"),
    Column("capital-loss"),
    Column("hours-per-week"),
    Column(
        "native-country",
        _words(
            "United-States, Cambodia, England, Puerto-Rico, Canada, Germany, "
            "Outlying-US(Guam-USVI-etc), India,"
            "Japan, Greece, South, China, Cuba, Iran, Honduras, Philippines, Italy, Poland, "
            "Jamaica, Vietnam,"
            "Mexico, Portugal, Ireland, France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, "
            "Columbia,"
            "Hungary, Guatemala, Nicaragua, Scotland, Thailand, Yugoslavia, El-Salvador, "
            "Trinadad&Tobago, Peru,"
            "Hong, Holand-Netherlands"
        ),
    ),
)

# The all-binary encoding: numbers become five intervals (two for the capital columns), 123 columns
# in all, which with the label are the 124 of the metric paper's Table I. The cuts are the fifths of
# UCI's training part, written down once: encoding other records does not look at them.
_ADULT_CUTS: dict[str, tuple[float, ...]] = {
    "age": (26, 33, 41, 50),
    "fnlwgt": (106648, 158662, 196338, 259873),
    "education-num": (8, 9, 10, 12),
    "capital-gain": (0,),
    "capital-loss": (0,),
    "hours-per-week": (35, 39, 40, 48),
}

BANK = (
    Column("age"),
    Column(
        "job",
        _words(
            "admin., unknown, unemployed, management, housemaid, entrepreneur, student, "
            "blue-collar,"
            "self-employed, retired, technician, services"
        ),
    ),
    Column("marital", _words("married, divorced, single")),
    Column("education", _words("unknown, secondary, primary, tertiary")),
    Column("default", _words("no, yes")),
    Column("balance"),
    Column("housing", _words("no, yes")),
    Column("loan", _words("no, yes")),
    Column("contact", _words("unknown, telephone, cellular")),
    Column("day"),
    Column("month", _words("jan, feb, mar, apr, may, jun, jul, aug, sep, oct, nov, dec")),
    Column("duration"),
    Column("campaign"),
    Column("pdays"),
    Column("previous"),
    Column("poutcome", _words("unknown, other, failure, success")),
)


def load_adult(
    train: Path | None,
    test: Path | None = None,
    *,
    encoding: str = "onehot",
    limits: Limits = LIMITS,
) -> Table:
    """UCI Adult from adult.data and adult.test (one of them, or both joined).

    Args:
        train: adult.data, or None. test: adult.test, or None. encoding: "onehot" keeps the 6
        numbers and makes 99 indicators (105 columns); "binary" makes all
            123 columns 0 or 1. A missing value ("?") is all zeros.
        limits: Bounds on bytes and rows.
    """
    one_of("encoding", encoding, {"onehot", "binary"})
    rows: list[list[str]] = []
    for path in (train, test):
        if path is not None:
            rows += read_rows(
                read_text(path, limits=limits), name=path.name, comment="|", limits=limits
            )
    if any(len(row) != len(ADULT) + 1 for row in rows):
        raise HostileFile(f"Adult must have {len(ADULT) + 1} columns.")
    # adult.test writes its labels with a full stop at the end.
    labels = [row[-1].rstrip(".") for row in rows]
    columns: tuple[Column, ...] = ADULT
    if encoding == "binary":
        columns = tuple(Column(c.name, c.categories, _ADULT_CUTS.get(c.name, ())) for c in ADULT)
    classes = ("<=50K", ">50K")
    X = encode([row[:-1] for row in rows], columns, name="Adult", unknown="zeros")
    y = class_numbers(labels, classes, name="Adult")
    return Table(X, y, tuple(n for c in columns for n in c.names), classes, name="adult")


def load_bank(path: Path, *, encoding: str = "onehot", limits: Limits = LIMITS) -> Table:
    """UCI Bank marketing from bank-full.csv (comma or semicolon).

    Args:
        path: The file. encoding: "onehot" keeps the 7 numbers and makes 44 indicators (51 columns);
        "paper" makes the 32 columns
            which with the label are the 33 of the metric paper's Table I.
        limits: Bounds on bytes and cells.
    """
    one_of("encoding", encoding, {"onehot", "paper"})
    text = read_text(path, limits=limits)
    delimiter = ";" if text[:200].count(";") > text[:200].count(",") else ","
    header, *body = read_rows(text, name=path.name, delimiter=delimiter, limits=limits)
    if header != [*(c.name for c in BANK), "y"] or not body:
        raise HostileFile(
            f"{path.name} must have rows and the columns {', '.join(c.name for c in BANK)}, y."
        )
    classes = ("no", "yes")
    X = encode([row[:-1] for row in body], BANK, name="Bank")
    y = class_numbers([row[-1] for row in body], classes, name="Bank")
    table = Table(X, y, tuple(n for c in BANK for n in c.names), classes, name="bank")
    return table if encoding == "onehot" else _bank_paper(table)


def _bank_paper(table: Table) -> Table:
    """Redundant indicators dropped, the date as one number, "never called before" beside the days
    since.
    """
    values = dict(zip(table.columns, table.X.T, strict=True))
    months = sum((i + 1) * values[f"month={month}"] for i, month in enumerate(BANK[10].categories))
    derived = {
        "date": 30 * months + values["day"],
        "called before": (values["pdays"] != -1).astype(np.float64),
        "days since": np.maximum(values["pdays"], 0),
    }
    names = (
        "age",
        *(f"job={job}" for job in BANK[1].categories if job != "unknown"),
        *("marital=single", "marital=married"),
        *(f"education={level}" for level in ("primary", "secondary", "tertiary")),
        *(
            "default=yes",
            "balance",
            "housing=yes",
            "loan=yes",
            "contact=telephone",
            "contact=cellular",
        ),
        *("date", "duration", "campaign", "called before", "days since", "previous"),
        *(f"poutcome={outcome}" for outcome in ("other", "failure", "success")),
    )
    X = np.stack([derived[name] if name in derived else values[name] for name in names], axis=1)
    return Table(X, table.y, names, table.classes, name="bank-33")


def load_numbers(path: Path, *, name: str, limits: Limits = LIMITS) -> Table:
    """A table of numbers separated by blanks, the label in the last column (0 or 1)."""
    text = read_text(path, limits=limits)
    try:
        values = np.array(
            [line.split() for line in text.splitlines() if line.strip()], dtype=np.float64
        )
    except ValueError:
        raise HostileFile(f"{path.name} must hold rows of numbers, all of one width.") from None
    if values.ndim != 2 or values.shape[1] < 2 or not np.isfinite(values).all():
        raise HostileFile(f"{path.name} must hold rows of at least two finite numbers.")
    y = values[:, -1]
    if not np.isin(y, (0, 1)).all():
        raise HostileFile(f"{path.name} must have 0 or 1 in its last column.")
    return Table(values[:, :-1], y.astype(np.int64), name=name)

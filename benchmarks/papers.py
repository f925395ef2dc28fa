"""The five papers at a glance, races against peers, and where we lose: what the page of results
begins with.

Every cell is a row that was measured; a line whose rows are not there (another machine, a quick
run) is left out. The few lines that stand here were chosen before the numbers: the paper's main
table per data set, not our best rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import markdown_table

__all__ = ["glance", "glance_rows", "losses", "races"]

Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Cell:
    """A row by its id, and what it promises."""

    row: str
    promise: str = ""

    def shown(self, rows: Rows) -> str:
        """The number with its promise; empty where it was not measured."""
        if self.row not in rows:
            return ""
        number = f"{rows[self.row]['value']:.4g}"
        return f"{number} ({self.promise})" if self.promise else number


_NOTHING = Cell("")


@dataclass(frozen=True)
class Line:
    """One line of a paper's table: what is measured, and the rows that carry it."""

    what: str
    faithful: Cell
    proven: Cell = _NOTHING
    better: Cell = _NOTHING

    def cells(self, rows: Rows) -> tuple[str, ...] | None:
        """What the line shows, or None where its faithful row was not measured."""
        if self.faithful.row not in rows:
            return None
        stated = rows[self.faithful.row]["paper"]
        paper = (
            ""
            if stated is None
            else f"{stated:.4g}"
            if isinstance(stated, float | int)
            else str(stated)
        )
        return (
            self.what,
            paper,
            self.faithful.shown(rows),
            self.proven.shown(rows),
            self.better.shown(rows),
        )


def _hashing() -> Iterator[Line]:
    for data, name in (("cifar10", "CIFAR-10"), ("coco-subset", "COCO (paper: NUS-WIDE)")):
        record = f"hashing.{data}.record"
        yield Line(
            f"Table 1, {name}, ITQ, 48 bits (mAP)",
            Cell(f"hashing.{data}.table1.ITQ.48bits.eps1", "ε = 1 claimed"),
            Cell(f"{record}.flip.eps8", "flips, ε = 8 per record"),
            Cell(f"{record}.codebook.eps8", "codebook, ε = 8 per record"),
        )
        yield Line(
            f"Table 1, {name}, HashNet, 48 bits (mAP)",
            Cell(f"hashing.{data}.table1.HashNet.48bits.eps1", "ε = 1 claimed"),
            Cell(f"{record}.few_bits_sdh.eps8", "few flipped bits, ε = 8 per record"),
            Cell(f"{record}.codebook_supervised.eps8", "supervised codebook, ε = 8 per record"),
        )
        yield Line(
            f"Table 2, {name}, PITQ, 48 bits (mAP)",
            Cell(f"hashing.{data}.table2.PITQ.48bits.eps1", "ε = 1 claimed"),
            Cell(f"{record}.pitq.eps8", "ε = 8 per record"),
            Cell(f"{record}.codebook_private.eps8", "private codebook, ε = 8 per record"),
        )


def _federated() -> Iterator[Line]:
    yield Line(
        "Table 1, Caltech-101 (% right)",
        Cell("federated.table1_dphe"),
        better=Cell("federated.send_topk_800", "a fifth of the change"),
    )
    yield Line(
        "Table 2, 95.6% sparse in the paper (% right)",
        Cell("federated.table2_accuracy_956"),
        better=Cell("federated.send_mask_800", "a shared mask"),
    )
    yield Line(
        "Seconds of a user, 5 users",
        Cell("federated.user_seconds_paper_n5", "paper mode, 2048 bits"),
        better=Cell("federated.user_seconds_pad_n5", "lattice pad"),
    )
    yield Line("Table 4, two classes (average precision)", Cell("federated.table4_dphe"))
    yield Line(
        "Noise on the sum, digits, 100 users (% right)",
        Cell("federated.noise_epsilon_none", "no noise"),
        Cell("federated.noise_epsilon_2", "ε = 2 per user"),
    )


def _metric() -> Iterator[Line]:
    for table, name in (("adult", "Adult"), ("bank", "Bank")):
        for measure, word in (("knn", "kNN accuracy"), ("auc", "pair AUC")):
            yield Line(
                f"Figure 9, {name} ({word})",
                Cell(f"metric.{table}_{measure}_dpp_eps4", "ε = 4 claimed"),
                Cell(f"metric.{table}_{measure}_mended_eps4", "ε = 4 per pair"),
                Cell(f"metric.{table}_{measure}_ours_full_eps4", "all columns, ε = 4 per pair"),
            )
    yield Line(
        "Digits (pair AUC)",
        Cell("metric.auc_paper_eps4", "ε = 4 claimed"),
        Cell("metric.auc_mended_eps4", "ε = 4 per pair"),
        Cell("metric.auc_proven_eps1", "ε = 1 per pair"),
    )


def _sketching() -> Iterator[Line]:
    proven = Cell("sketching.curve.codebook.eps8", "codebook, ε = 8 per image")
    for name in ("q3", "q6"):
        yield Line(
            f"Figure 3, MNIST, {name.upper()} (% right)",
            Cell(f"sketching.accuracy_{name}"),
            proven,
            Cell(f"sketching.accuracy_both_{name}", "bits and means"),
        )
        yield Line(f"Table 3, MNIST, {name.upper()} (PSNR, dB)", Cell(f"sketching.psnr_{name}"))
    yield Line("Figure 6, CIFAR-10, Q3 (% right)", Cell("sketching.cifar_accuracy_q3"))
    yield Line(
        "Figure 6, CIFAR-10, Q6 (% right)",
        Cell("sketching.cifar10_q6_accuracy_residual", "residual network, 34 epochs"),
    )


def _tagging() -> Iterator[Line]:
    for data, name in (("coco-subset", "COCO subset"), ("scene", "scene (paper: VOC2007)")):
        for model in ("P2", "RP2"):
            claimed = f"tagging.fig4.{data}.S1.{model.lower()}"
            yield Line(
                f"Figure 4, {model}-ML-GCN, {name} (OP)",
                Cell(f"{claimed}.OP", "ε = 10 claimed, S = 1"),
            )
        yield Line(
            f"Figure 4, P2-ML-GCN, {name} (mAP)",
            Cell(f"tagging.fig4.{data}.S1.p2.mAP", "ε = 10 claimed, S = 1"),
            Cell(f"tagging.{data}.map_laplace_eps10", "clipped Laplace, ε = 10 per query"),
            Cell(f"tagging.{data}.map_proven_eps10", "ε = 10 per query"),
        )


PAPERS = (
    ("PHashing and PITQ", _hashing),
    ("DPHE", _federated),
    ("DPP-DML", _metric),
    ("NegDL", _sketching),
    ("P2-ML-GCN and RP2-ML-GCN", _tagging),
)
_COLUMNS = ("what", "paper", "ours, paper calibration", "ours, proven", "ours, better method")


def glance(rows: Rows) -> list[str]:
    """The section as lines of Markdown."""
    lines = ["## The five papers at a glance", "", *_WORDS, ""]
    for name, make in PAPERS:
        shown = [cells for line in make() if (cells := line.cells(rows)) is not None]
        if shown:
            lines += [f"### {name}", *markdown_table(_COLUMNS, shown), ""]
    return lines


def glance_rows() -> list[str]:
    """The ids of the rows that `glance` shows where they were measured."""
    lines = [line for _, make in PAPERS for line in make()]
    return [
        cell.row for line in lines for cell in (line.faithful, line.proven, line.better) if cell.row
    ]


def races(
    rows: Iterable[Mapping[str, Any]],
    *,
    versions: Mapping[str, str] | None = None,
    per_peer: int = 3,
) -> list[str]:
    """Ratios against somebody else's code, at most so many per peer; all rows with a peer are on
    the pages behind.
    """
    by_peer: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(
        (row for row in rows if row["peer"] and _ratio(row)), key=lambda row: str(row["id"])
    ):
        by_peer.setdefault(str(row["peer"]), []).append(row)
    cells = [
        (
            _versioned(peer, versions or {}),
            f"`{row['id']}`",
            f"{_number(row['value'])} {_short(row['unit'])}",
        )
        for peer, found in sorted(by_peer.items())
        for row in found[:per_peer]
    ]
    if not cells:
        return []
    return [
        "## Races against peers",
        "",
        *_RACES,
        "",
        *markdown_table(("peer", "figure", "measured"), cells),
        "",
    ]


# The package behind a peer's name, where the name itself has no version.
_PACKAGES = {
    "python-paillier": "phe",
    "pypaillier": "pypaillier",
    "TenSEAL": "tenseal",
    "Flower": "flwr",
    "usearch": "usearch",
    "networkx": "networkx",
    "scikit-learn": "scikit-learn",
    "PyTorch": "torch",
    "torch": "torch",
    "numpy": "numpy",
}


def _versioned(peer: str, versions: Mapping[str, str]) -> str:
    """`usearch, exact search` as `usearch 2.26.6, exact search`."""
    for name, package in _PACKAGES.items():
        if package in versions and re.search(rf"\b{re.escape(name)}\b(?! \d)", peer):
            return re.sub(rf"\b{re.escape(name)}\b", f"{name} {versions[package]}", peer, count=1)
    return peer


def _number(value: float) -> str:
    """Four digits, and no power of ten to be read."""
    return f"{float(f'{value:.4g}'):,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _ratio(row: Mapping[str, Any]) -> bool:
    return str(row["unit"]).split(" ", 1)[0] in {"x", "times"}


def _short(unit: str) -> str:
    return "times the time (lower is better)" if "lower is better" in unit else "times as fast"


@dataclass(frozen=True)
class Contest:
    """Two rows of one measure: ours, and what was run beside it."""

    what: str
    ours: str
    other: str
    name: str
    lower_is_better: bool = False

    def lost(self, rows: Rows) -> bool:
        """Whether both were measured and ours is worse."""
        if self.ours not in rows or self.other not in rows:
            return False
        mine, theirs = rows[self.ours]["value"], rows[self.other]["value"]
        return bool(mine > theirs if self.lower_is_better else mine < theirs)


_CONTESTS = (
    *(
        Contest(
            f"search in {name} at ε = {epsilon} per record (mAP)",
            f"hashing.{data}.record.codebook.eps{epsilon}",
            f"hashing.{data}.table1.ITQ.48bits.plain",
            "unprotected ITQ codes of 48 bits",
        )
        for data, name in (("cifar10", "CIFAR-10"), ("coco-subset", "COCO"))
        for epsilon in (4, 8)
    ),
    Contest(
        "metric on digits at ε = 1 per pair (pair AUC)",
        "metric.auc_proven_eps1",
        "metric.auc_lda",
        "LDA of scikit-learn, which sees every class",
    ),
    Contest(
        "metric on digits at ε = 1 per pair (kNN)",
        "metric.knn_proven_eps1",
        "metric.knn_lda",
        "LDA of scikit-learn, which sees every class",
    ),
    Contest(
        "metric on Bank at ε = 4 per pair (kNN)",
        "metric.bank_knn_ours_full_eps4",
        "metric.bank_knn_dpp_eps4",
        "the paper's, at a claimed ε = 4",
    ),
    Contest(
        "seconds of a federated user, 5 users",
        "federated.user_seconds_pad_n5",
        "federated.user_seconds_secagg_n5",
        "Flower SecAgg+ (32-bit mask seeds)",
        lower_is_better=True,
    ),
    Contest(
        "seconds of a federated user, 100 users",
        "federated.user_seconds_pad_n100",
        "federated.user_seconds_secagg_n100",
        "Flower SecAgg+ (32-bit mask seeds)",
        lower_is_better=True,
    ),
    Contest(
        "digits from codebook sketches at ε = 8 (% right)",
        "sketching.curve.codebook.eps8",
        "sketching.dpsgd_accuracy_eps8",
        "DP-SGD on oriented gradients at ε = 8, where the server sees the pixels",
    ),
    *(
        Contest(
            f"published tags, {name}, ε = 10 per query (mAP)",
            f"tagging.{data}.map_proven_eps10",
            f"tagging.{data}.map_nonprivate",
            "the same tagger without noise",
        )
        for data, name in (
            ("coco-subset", "COCO subset"),
            ("scene", "scene"),
            ("corel5k", "Corel 5k"),
        )
    ),
)


def losses(rows: Rows) -> list[str]:
    """Where others are better, from the same rows: peers, unprotected methods, and the papers' own
    numbers.
    """
    shown = [
        (one.what, f"{rows[one.ours]['value']:.4g}", f"{rows[one.other]['value']:.4g}", one.name)
        for one in _CONTESTS
        if one.lost(rows)
    ]
    shown += [
        (
            line.what,
            f"{rows[line.faithful.row]['value']:.4g}",
            f"{stated:.4g}",
            "the paper's own number, its own network",
        )
        for _, make in PAPERS
        for line in make()
        if line.faithful.row in rows
        and isinstance(stated := rows[line.faithful.row]["paper"], float | int)
        and ("dB" not in line.what and rows[line.faithful.row]["value"] < 0.97 * stated)
    ]
    shown += [
        (f"`{key}`", f"{_number(row['value'])} times the time", "1", str(row["peer"]))
        for key, row in sorted(rows.items())
        if row["peer"]
        and _ratio(row)
        and "lower is better" in str(row["unit"])
        and row["value"] > 1
    ]
    if not shown:
        return []
    return [
        "## Where we lose",
        "",
        *_LOSSES,
        "",
        *markdown_table(("what", "ours", "theirs", "who"), shown),
        "",
    ]


_WORDS = (
    "The first number is the paper's own, on its data and its network where those could not be "
    "had; compare shares and",
    "orders rather than absolute numbers. A claimed ε is what the paper says of the same noise; "
    "most are refuted by",
    "[the audit](audit/report.md). A proven ε follows from a proof and is charged to the ledger.",
)
_RACES = (
    "Both sides ran in one run, in turns; a ratio is one of medians. Notes, and the other rows "
    "with a peer, are on the",
    "pages named below.",
)
_LOSSES = (
    "Rows in which somebody else's number is better than ours: peers, the same work without "
    "protection, and the",
    "papers' own figures where their networks and data sets could not be had.",
)

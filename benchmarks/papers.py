"""The five papers at a glance: their number, ours at paper calibration, ours proven, and our better method.

Every cell is a row that was measured; a line whose rows are not there (another machine, a quick run) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import markdown_table

__all__ = ["glance", "races"]

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
        paper = "" if stated is None else f"{stated:.4g}" if isinstance(stated, float | int) else str(stated)
        return self.what, paper, self.faithful.shown(rows), self.proven.shown(rows), self.better.shown(rows)


def _hashing() -> Iterator[Line]:
    for data, name in (
        ("cifar10", "CIFAR-10"),
        ("fashion-mnist", "Fashion-MNIST"),
        ("coco-subset", "COCO (paper: NUS-WIDE)"),
    ):
        record = f"hashing.{data}.record"
        for epsilon in (1, 4):
            yield Line(
                f"Table 1, {name}, ITQ, 48 bits (mAP)",
                Cell(f"hashing.{data}.table1.ITQ.48bits.eps{epsilon}", f"ε = {epsilon} claimed"),
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
        better=Cell("federated.send_topk_800_t3", "a fifth of the change, shown where three agree"),
    )
    for key, sparsity in (("0001", "0.1"), ("791", "79.1"), ("956", "95.6")):
        yield Line(
            f"Table 2, {sparsity}% sparse in the paper (% right)",
            Cell(f"federated.table2_accuracy_{key}"),
            better=Cell("federated.send_mask_800_t3", "a shared mask") if key == "956" else _NOTHING,
        )
    yield Line(
        "Table 2, seconds of a user at 95.6% sparsity",
        Cell("federated.user_seconds_paper_n5", "paper mode, 2048 bits"),
        better=Cell("federated.user_seconds_pad_n5", "under a pad, 2048 bits"),
    )
    yield Line("Table 4, two classes (average precision)", Cell("federated.table4_dphe"))
    for method in ("prr10", "ra12"):
        yield Line(
            f"Table 1, {method.upper()} (% right)",
            Cell(f"federated.table1_{method}_unclipped", "ε = 0.2 claimed"),
            Cell(f"federated.table1_{method}_proven", "ε = 0.2 per record"),
        )
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
    for measure, word in (("knn", "kNN accuracy"), ("auc", "pair AUC")):
        yield Line(
            f"Digits ({word})",
            Cell(f"metric.{measure}_paper_eps4", "ε = 4 claimed"),
            Cell(f"metric.{measure}_mended_eps4", "ε = 4 per pair"),
            Cell(f"metric.{measure}_proven_eps1", "ε = 1 per pair"),
        )


def _sketching() -> Iterator[Line]:
    proven = Cell("sketching.curve.codebook.eps8", "codebook, ε = 8 per image")
    for name in ("q1", "q2", "q3", "q4", "q6"):
        yield Line(
            f"Figure 3, MNIST, {name.upper()} (% right)",
            Cell(f"sketching.accuracy_{name}"),
            proven,
            Cell(f"sketching.accuracy_both_{name}", "bits and means"),
        )
        yield Line(f"Table 3, MNIST, {name.upper()} (PSNR, dB)", Cell(f"sketching.psnr_{name}"))
    for name in ("q3", "q6", "q12"):
        yield Line(f"Figure 6, CIFAR-10, {name.upper()} (% right)", Cell(f"sketching.cifar_accuracy_{name}"))


def _tagging() -> Iterator[Line]:
    for data, name, prefix in (
        ("coco-subset", "COCO subset", "tagging.coco-subset"),
        ("scene", "scene", "tagging.scene"),
        ("corel5k", "Corel 5k", "tagging.corel5k"),
        ("scenes", "scenes of digits", "tagging"),
    ):
        yield Line(
            f"{name} (mAP)",
            Cell(f"{prefix}.map_nonprivate", "no protection"),
            Cell(f"{prefix}.map_laplace_eps10", "clipped Laplace, ε = 10 per query"),
            Cell(f"{prefix}.map_proven_eps10", "ε = 10 per query"),
        )
        for model in ("P2", "RP2"):
            claimed = f"tagging.fig4.{data}.{model.lower()}"
            yield Line(f"Figure 4, {model}-ML-GCN, {name} (OP)", Cell(f"{claimed}.OP", "ε = 10 claimed"))
            for metric, word in (("map", "mAP"), ("of1", "OF1")):
                yield Line(
                    f"Figure 4, {model}-ML-GCN, {name} ({word})",
                    Cell(f"{claimed}.{word}", "ε = 10 claimed"),
                    Cell(f"{prefix}.{metric}_laplace_eps10", "clipped Laplace, ε = 10 per query"),
                    Cell(f"{prefix}.{metric}_proven_eps10", "ε = 10 per query"),
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


def races(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """All rows that were run against somebody else's code, in one table."""
    shown = [
        (row["peer"], row["id"], f"{row['value']:.4g}", row["unit"], row["note"] or "") for row in rows if row["peer"]
    ]
    if not shown:
        return []
    return ["## Beside peers", "", *markdown_table(("peer", "figure", "measured", "unit", "how"), sorted(shown)), ""]


_WORDS = (
    "The first number is the paper's own, on its data and its network where those could not be had; compare shares and",
    "orders rather than absolute numbers. A claimed ε is what the paper says of the same noise; most are refuted by",
    "[the audit](audit/report.md). A proven ε follows from a proof and is charged to the ledger.",
)

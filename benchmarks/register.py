"""Every definition, theorem, algorithm, table and figure of the five papers: where it is in the
code, which rows reproduce it, and whether it holds. `docs/papers.md` is written from this list.

Code is named by the path that it is imported by, rows by their id in `docs/results/*.json` (with *
at the end for all that begin so), and attacks by the method's name in the table of the audit. A
test resolves all of them. The measured figures are read from the rows, never typed here.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.harness import markdown_table

__all__ = ["PAPERS", "Item", "found_rows", "papers_page", "resolve"]

Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Item:
    """One numbered thing of a paper.

    Parameters:
        name: as the paper numbers it.
        says: what it says, in short.
        holds: "yes", "no", "in part", or "definition" where there is nothing to hold.
        why: what was found; empty where the rows say it.
        code: importable paths.
        rows: ids of rows; with * at the end all that begin so, shown as their number.
        audit: methods of the audit's table that attack it.
    """

    name: str
    says: str
    holds: str
    why: str = ""
    code: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    audit: tuple[str, ...] = ()


def resolve(path: str) -> Any:
    """What an importable path names: a module, or what hangs on one.

    Raises:
        ImportError: nothing by that name can be imported.
    """
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[split:]:
                found = getattr(found, part)
        except AttributeError:
            break
        return found
    raise ImportError(f"{path} cannot be imported. Name it in benchmarks/register.py as it is now.")


def found_rows(asked: str, rows: Rows) -> list[str]:
    """The ids of the rows that an item asks for."""
    if asked.endswith("*"):
        return [key for key in rows if key.startswith(asked[:-1])]
    return [asked] if asked in rows else []


def papers_page(rows: Rows) -> str:
    """docs/papers.md: a table for each paper."""
    lines = [*_HEAD, ""]
    for title, source, items in PAPERS:
        lines += [
            f"## {title}",
            source,
            "",
            *markdown_table(
                ("item", "what it says", "in the code", "measured", "holds"),
                (_cells(item, rows) for item in items),
            ),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _cells(item: Item, rows: Rows) -> Iterator[str]:
    yield item.name
    yield item.says
    yield ", ".join(map(_linked, item.code))
    yield "; ".join([*_measured(item, rows), *(f"attacked: {name}" for name in item.audit)])
    yield f"{item.holds}. {item.why}".strip() if item.why else item.holds


@cache
def _documented() -> dict[str, str]:
    """Every name that a page of the reference describes, and that page."""
    pages = sorted((Path(__file__).parents[1] / "docs" / "reference").glob("*.md"))
    return {
        name: page.name
        for page in pages
        for name in re.findall(r"^::: ([\w.]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }


def _linked(path: str) -> str:
    """A name, as a link to its entry in the reference where it, or the class it is of, has one."""
    found = resolve(path)
    whole = f"{found.__module__}.{found.__qualname__}" if hasattr(found, "__qualname__") else path
    for known in (whole, whole.rpartition(".")[0]):
        if known in _documented():
            return f"[`{path}`](reference/{_documented()[known]}#{known})"
    return f"`{path}`"


def _measured(item: Item, rows: Rows) -> Iterator[str]:
    for asked in item.rows:
        found = found_rows(asked, rows)
        if asked.endswith("*"):
            yield f"`{asked}` ({len(found)} rows)"
        elif found:
            row = rows[asked]
            paper = row.get("paper")
            beside = "" if paper is None else f" (paper {paper})"
            yield f"`{asked}` {row['value']:.4g}{beside}"


_HEAD = (
    "# The five papers, item by item",
    "Where each definition, theorem, algorithm, table and figure is in the code, which rows of "
    "the [results](RESULTS.md)",
    "reproduce it, and whether it holds. Written by `python -m benchmarks.results` from "
    "`benchmarks/register.py` and the",
    "result files; attacks are in [the verdicts](audit/report.md), proofs of ours in "
    "[guarantees](guarantees.md).",
)

_DP = "what ε means here; every guarantee says its unit and its neighbours"
_HASHING = (
    Item("Definition 1", "(ε, δ)-differential privacy", "definition", _DP,
         ("blindsight.privacy.Guarantee", "blindsight.privacy.Cost")),
    Item("Theorem 2", "post-processing", "yes", "used wherever a release is read",
         ("blindsight.privacy.door.Door",)),
    Item("Theorem 3", "basic composition", "yes", "the ledger adds, and composes better where "
         "it can", ("blindsight.privacy.Ledger", "blindsight.privacy.accounting")),
    Item("Algorithm 1", "random flipping of the bits of U", "yes", "as printed",
         ("blindsight.privacy.mechanisms.BitFlip.paper",)),
    Item("Theorem 4", "flipping with β = e^-ε is ε-private", "no",
         "one bit costs ln((1 - β)/β), and a record has c bits",
         ("blindsight.privacy.mechanisms.BitFlip",),
         ("hashing.cifar10.table1.ITQ.48bits.eps1",), ("PHashing",)),
    Item("Lemma 5", "E|U' - U| = 2 sqrt(βnc)", "in part",
         "exact for the squared norm, 4βnc; the norm itself is below",
         ("blindsight.privacy.mechanisms.BitFlip.paper",)),
    Item("Algorithm 2", "PHashing: any hashing, then flips", "yes", "as printed",
         ("blindsight.hashing.PHashing",)),
    Item("Theorem 6", "Algorithm 2 is ε-private", "no",
         "the hash function is learned from the same images and released as it is; see Theorem 4",
         ("blindsight.hashing.PHashing",), (), ("PHashing",)),
    Item("Lemma 7", "expected change of Hamming distances", "yes",
         "and says little: the bound is above what distances can differ by once n ≥ 1/β",
         ("blindsight.evaluation.retrieval.distance_counts",)),
    Item("Algorithm 3", "PITQ: flips inside the iterations of ITQ", "in part",
         "line 5 as printed gives the identity; both readings are there",
         ("blindsight.hashing.PITQ", "blindsight.hashing.paper.algorithm_3")),
    Item("Theorem 8", "Algorithm 3 is ε-private", "no",
         "the projection W is computed from all images without noise",
         ("blindsight.hashing.PITQ",), ("hashing.cifar10.record.pitq.eps8",), ("PITQ",)),
    Item("Figure 1", "the setting", "definition"),
    Item("Table 1, CIFAR-10", "mAP of nine hashings at ε 1, 2, 4 and four lengths", "yes",
         "shares kept agree; orders of bases agree in 29 to 31 of 36 pairs a length; DSH stays .09 "
         "below the paper's with the learning rate of 0.001 that all bases have, and .03 with "
         "0.003, which was first seen to help on 1,000 test images and then chosen on 5,000 "
         "training images",
         ("benchmarks.hashing.tables.tables",),
         ("hashing.cifar10.table1*", "hashing.cifar10.table1.DSH.48bits.plain",
          "hashing.cifar10.dsh_rate_0.003.48bits.plain",
          "hashing.cifar10.table1.HashNet.48bits.plain")),
    Item("Table 1, NUS-WIDE", "the same with several labels an image", "yes",
         "NUS-WIDE cannot be had here: COCO and VOC2012 stand in, five seeds each; orders of bases "
         "agree with the paper's in 27 to 30 of 36 pairs a length on both",
         ("benchmarks.hashing.tables.tables",),
         ("hashing.coco-subset.table1*", "hashing.voc2012-subset.table1*",
          "hashing.voc2012-subset.table1.HashNet.48bits.plain",
          "hashing.voc2012-subset.table1.HashNet.48bits.eps2")),
    Item("Table 1, ImageNet", "the same with 100 classes", "in part",
         "ImageNet cannot be had here: Caltech-101 stands in, where absolute values differ; "
         "PHashing (ADSH) at 12 bits is misprinted in the paper",
         ("benchmarks.hashing.tables.tables",),
         ("hashing.caltech101.table1*", "hashing.caltech101.table1.DPSH.48bits.plain")),
    Item("Appendix: CUB, Aircraft", "fine-grained sets", "not measured",
         "CUB-200, Aircraft, Flowers-102, Pets, Cars, Dogs, Food-101 and Imagenette were looked "
         "for by name in the package registries: none is there; the rows say where a user puts "
         "them",
         ("benchmarks.hashing.sets.collections",)),
    Item("Table 2", "PITQ keeps ITQ's mAP", "yes", "because W and R see every image without noise",
         ("benchmarks.hashing.tables.tables",),
         ("hashing.cifar10.table2.PITQ.48bits.eps1", "hashing.cifar10.table2.ITQ.48bits.plain")),
    Item("Figure 2", "precision and recall of ITQ, KSH and DSH", "yes",
         "drawn for CIFAR-10, COCO, VOC2012 and Caltech-101: results/hashing-figure-2-*.svg",
         ("benchmarks.hashing.plots.precision_recall",)),
    Item("Figure 3", "mAP at ε = 1 by length", "yes",
         "drawn for CIFAR-10, COCO, VOC2012 and Caltech-101: results/hashing-figure-3-*.svg",
         ("benchmarks.hashing.plots.by_bits",)),
)  # fmt: skip

_FEDERATED = (
    Item("Section 2.2", "averages under Paillier", "yes", "",
         ("blindsight.federated.paper.paillier.generate",),
         ("federated.table2_seconds_956_1024",)),
    Item("Section 2.3", "decomposition into values and permuted support", "yes", "",
         ("blindsight.federated.paper.algorithm.decompose",)),
    Item("Section 2.4", "shards of a fixed capacity", "yes", "",
         ("blindsight.federated.paper.algorithm.shards",)),
    Item("Algorithm 1", "averaging classifiers with DPHE", "yes", "as printed",
         ("blindsight.federated.paper.algorithm.combine",
          "blindsight.federated.paper.algorithm.PaperSimulation")),
    Item("Security of Algorithm 1", "nobody but the user can identify w for N ≥ 3", "no",
         "by supports, single contributors, two sums subtracted, one user passed off as the sum",
         ("blindsight.federated.paper.algorithm.PaperSimulation",), (), ("DPHE",)),
    Item("Figures 1 to 3", "the protocol", "definition", "",
         ("blindsight.federated.paper.algorithm.permutation",)),
    Item("Table 1, Caltech-101", "accuracy of DPHE, PRR10, RA12", "yes",
         "PRR10 and RA12 only by the reading without clipping, which proves nothing",
         ("benchmarks.federated.accuracy.accuracy_rows",),
         ("federated.table1_dphe", "federated.table1_dphe_sgd",
          "federated.table1_prr10_unclipped_n848",
          "federated.table1_ra12_unclipped")),
    Item("Table 1, Caltech-256", "the same", "not measured",
         "the images are in no registry; `benchmarks.federated.accuracy.table1_256` runs where a "
         "user has them", ("benchmarks.federated.accuracy.table1_256",),
         ("federated.skipped.table1_caltech256",)),
    Item("Table 2", "accuracy and time by sparsity", "yes",
         "by proximal steps, and by SGD with the elastic net, the paper's own learner: the l1 "
         "penalty is cumulative, as in scikit-learn, and steps fall on from round to round; with a "
         "threshold in each step by itself it reached 80.5% on one split where the paper has "
         "89.6%",
         ("blindsight.federated.learning.Proximal", "blindsight.federated.learning.SGD"),
         ("federated.table2_accuracy_0001", "federated.table2_accuracy_791",
          "federated.table2_accuracy_956", "federated.table2_accuracy_sgd_0001",
          "federated.table2_accuracy_sgd_791", "federated.table2_accuracy_sgd_956")),
    Item("Figure 4", "accuracy by number of users", "yes",
         "flat with as many images each, falling where the same images are split; ten splits",
         ("benchmarks.federated.accuracy.accuracy_rows",),
         ("federated.figure4_left_n5", "federated.figure4_left_n50", "federated.figure4_left_n100",
          "federated.figure4_right_n5", "federated.figure4_right_n50",
          "federated.figure4_right_n100")),
    Item("Table 3", "40 face attributes", "yes",
         "CelebA is in no registry: COCO's 40 most frequent labels and VOC2012's 20 stand in, five "
         "splits; DPHE, PRR10, RA12 come in the paper's order in accuracy; labels are rarer than "
         "the paper's attributes, and with noise as for their own number of images PRR10 and RA12 "
         "are below the majority's answer",
         ("benchmarks.federated.accuracy.table3", "benchmarks.federated.accuracy.table3_photos"),
         ("federated.table3_coco40_dphe", "federated.table3_coco40_dphe_sgd",
          "federated.table3_coco40_prr10_unclipped", "federated.table3_coco40_ra12_unclipped",
          "federated.table3_coco40_majority", "federated.table3_voc20_dphe",
          "federated.table3_voc20_dphe_sgd", "federated.table3_voc20_prr10_unclipped",
          "federated.table3_voc20_ra12_unclipped", "federated.table3_voc20_majority",
          "federated.skipped.table3_celeba")),
    Item("Table 4", "sensitive places", "yes",
         "on COCO's bathrooms and screens; the life-logging set cannot be had",
         ("benchmarks.federated.accuracy.accuracy_rows",),
         ("federated.table4_dphe", "federated.table4_ra12_unclipped")),
)  # fmt: skip

_METRIC = (
    Item("Definition 1", "edge-disjoint paths", "definition", "",
         ("blindsight.metric.kappa.kappa",)),
    Item("Definition 2", "h-Lipschitz loss", "definition", "rows are clipped to h",
         ("blindsight.metric.losses.Contrastive.clipped_rows",)),
    Item("Definition 3, Equation 1", "ε-differential privacy", "definition", _DP,
         ("blindsight.privacy.Guarantee",)),
    Item("Definitions 4, 5, Equations 2, 3", "l1 sensitivity, Laplace mechanism", "definition", "",
         ("blindsight.privacy.mechanisms.Laplace",)),
    Item("Equations 4, 5", "κ", "yes", "exact on small graphs against brute force",
         ("blindsight.metric.kappa",), ("metric.kappa_second_is_exact",)),
    Item("Definition 6, Equation 6", "differential pairwise privacy", "definition",
         "the unit is κ pairs; we state it per label, pair, record and person",
         ("blindsight.metric.DPPMetric",)),
    Item("Equations 7, 8", "contrastive loss and its gradient", "yes", "",
         ("blindsight.metric.Contrastive",)),
    Item("Lemma 1, Equation 9", "when the gradient is bounded", "yes", "",
         ("blindsight.metric.losses.Contrastive.factors",)),
    Item("Theorem 1", "sensitivity of a row is 2κh/|B|", "in part",
         "of one row; all d' rows see the same pairs, so an epoch costs d' times as much",
         ("blindsight.metric.algorithm1.RowNoise",), (), ("DPP-DML",)),
    Item("Theorem 2, Equations 10 to 13", "reduced sensitivity from the batch's own peak", "no",
         "the noise's scale is then data", ("blindsight.metric.algorithm1.RowNoise",), (),
         ("DPP-S",)),
    Item("Algorithm 1", "DPP-DML", "no",
         "line 5 compounds the step to 1/sqrt(τ!) and stops learning; both readings are there",
         ("blindsight.metric.algorithm1.algorithm1", "blindsight.metric.paper.DPPDML"),
         ("metric.knn_paper_eps4", "metric.knn_paper_root_eps4"), ("DPP-DML",)),
    Item("Proposition 1, Equations 14, 15", "κ' bounds κ", "yes", "",
         ("blindsight.metric.kappa",), ("metric.kappa_vs_networkx",)),
    Item("Equation 16", "κ of intransitive relations", "yes", "",
         ("blindsight.metric.PairGraph",)),
    Item("Appendix C, Equation 17, Corollary 1", "Gaussian noise", "in part",
         "as Theorem 2: the scale is data", ("blindsight.metric.algorithm1.RowNoise",),
         ("metric.mechanism_gaussian_adult",)),
    Item("Figures 1 to 6", "the setting", "definition"),
    Item("Table I", "the data sets", "in part",
         "Adult, Bank and IPUMS-BR are here; IPUMS-US is in no registry",
         ("benchmarks.metric.protocol.make_split",), ("metric.skipped.ipums-us",)),
    Item("Figures 7, 8", "toy: DPP-S near non-private, DPP behind", "in part",
         "not at the printed margin of 1, where every pair of strips is inside it and growing W at "
         "random lowers the objective; with the gap of the strips as margin the means come in "
         "order, and 15 of 20 seeds",
         ("benchmarks.metric.figures.toy_rows",),
         ("metric.toy_objective_nonpriv", "metric.toy_objective_dpp",
          "metric.toy_objective_dpp_s", "metric.toy_sensitivity_ratio",
          "metric.toy_order_holds_margin_1", "metric.toy_order_holds_margin_gap")),
    Item("Figure 9", "accuracy against ε on four tables", "in part",
         "input perturbation is last everywhere, in accuracy and in pair AUC; DPP is hardly above "
         "node privacy, because κ' is nearly the largest degree; kNN accuracy hardly tells a "
         "method from an untrained map and does not rise steadily with ε; means of 20 runs, as "
         "in the paper; its fourth table, IPUMS-US, cannot be had here",
         ("benchmarks.metric.rows.figure_9_claims",),
         ("metric.adult_knn_dpp_eps4", "metric.adult_knn_untrained", "metric.bank_knn_dpp_eps4",
          "metric.bank_knn_untrained", "metric.ipums-br_knn_dpp_eps4",
          "metric.ipums-br_knn_untrained", "metric.figure9_input_worst_knn_adult",
          "metric.figure9_input_worst_knn_bank", "metric.figure9_input_worst_knn_ipums-br",
          "metric.figure9_dpp_above_node_knn_adult", "metric.figure9_dpp_above_node_knn_bank",
          "metric.figure9_dpp_above_node_knn_ipums-br", "metric.figure9_rises_knn_ipums-br",
          "metric.figure9_*")),
    Item("Figure 10", "Lap-S < SCDF < Lap < Duchi in objective", "in part",
         "the order depends on how large the first W is, which the paper leaves open: from unit "
         "entries Lap-S is below Lap, from smaller ones not; Lap-S and SCDF are not told apart; "
         "Duchi is last by far",
         ("benchmarks.metric.figures.mechanism_rows",),
         ("metric.figure10_order_holds_adult", "metric.figure10_order_holds_bank",
          "metric.figure10_unit_start*")),
    Item("Figure 11", "h = 0.5 and |B| = 50 are best; ρ = 2; d' = 16", "in part",
         "h = 0.5 is best with a first W of unit entries; |B| = 200, ρ = 0.5 and d' = 32 come out "
         "above the paper's; noise falls as 1/|B|; nearly all dissimilar pairs are inside the "
         "margin at every ρ, so that a larger one pushes harder along the direction in which they "
         "differ most: at ρ = 4 nearly half of |W|² lies in one direction and accuracy is below "
         "that of an untrained map",
         ("benchmarks.metric.figures.parameter_rows",),
         ("metric.figure11_best_h_start_1", "metric.parameter_h_0.1", "metric.parameter_h_0.5",
          "metric.parameter_batch_50", "metric.parameter_batch_200", "metric.parameter_rho_0.5",
          "metric.parameter_rho_2", "metric.parameter_rho_4",
          "metric.figure11_rho_0.5_largest_direction", "metric.figure11_rho_4_largest_direction",
          "metric.bank_knn_untrained", "metric.parameter_dimension_16",
          "metric.parameter_dimension_32")),
)  # fmt: skip

_SKETCHING = (
    Item("Table 1", "a negative database by example", "definition", "",
         ("blindsight.sketching.negative_database.NegativeDatabase",)),
    Item("Algorithm 1", "the QK-hidden algorithm", "yes", "",
         ("blindsight.sketching.negative_database.hide",), ("sketching.vs_naive_algorithm1",)),
    Item("Algorithm 2", "sketch from a negative database", "yes",
         "drawn at once, without the records", ("blindsight.sketching.sampler.fill",)),
    Item("Equations 1 to 3", "activations of the estimated input", "definition",
         "the network's own; only its input is estimated", ("blindsight.sketching.NegDL",)),
    Item("Equation 4", "P_diff", "yes", "", ("blindsight.sketching.QKParameters.p_diff",),
         ("sketching.pdiff1_q3",)),
    Item("Equations 5 to 7", "posteriors of bits and pixels, the mean as input", "yes",
         "the mean is a sum over the bits, without the table of 2^L values",
         ("blindsight.sketching.sketches.SketchSet.posteriors",
          "blindsight.sketching.sketches.SketchSet.means")),
    Item("Algorithm 3", "NegDL", "yes", "", ("blindsight.sketching.NegDL",)),
    Item("Section 4.4", "training costs what it costs on pixels", "yes", "",
         ("benchmarks.sketching.speed.epoch_rows",), ("sketching.epoch_vs_pixels",)),
    Item("Equations 8 to 10", "SSIM and PSNR", "definition", "",
         ("blindsight.evaluation.scores.ssim", "blindsight.evaluation.scores.psnr")),
    Item("Equation 11", "G = -log2 of a successful guess", "in part",
         "true of guessing all pixels at once; most pixels come back all the same",
         ("blindsight.sketching.leak.Leak",), ("sketching.best_attacker_psnr_q6",),
         ("NegDL sketch",)),
    Item("Section 5.5", "reversing is NP-hard", "no", "belief propagation recovers the records",
         ("blindsight.sketching.negative_database.NegativeDatabase",),
         ("sketching.records_bits_recovered_r6.5",), ("NegDL records",)),
    Item("Figures 1, 2", "the setting", "definition"),
    Item("Table 2", "P_diff of Q1 to Q12", "yes", "", ("blindsight.sketching.QKParameters.paper",),
         ("sketching.pdiff1_q3",)),
    Item("Figures 3, 4", "MNIST accuracy of Q1 to Q12", "yes",
         "within 0.1 to 2.1 points, all settings in 5 epochs (paper: 100)",
         ("benchmarks.sketching.training.mnist_rows",),
         ("sketching.accuracy_original", "sketching.accuracy_q3", "sketching.accuracy_q6",
          "sketching.accuracy_q12")),
    Item("Figure 5", "accuracy grows with r", "yes",
         "eight values of r, each in 4 epochs on 20,000 images",
         ("benchmarks.sketching.training.records_rows",),
         ("sketching.accuracy_r2", "sketching.accuracy_r20", "sketching.accuracy_r*")),
    Item("Figure 6", "CIFAR-10 accuracy of Q1 to Q12", "in part",
         "the order holds, all settings in 3 epochs at half width; two cores do not train a "
         "ResNet-50 for 300 epochs: at Q6 a residual network of 1.2 million weights comes within "
         "1.6 points in 34 epochs, 58 CPU seconds each of 26 on crops and 108 each of 8 on whole "
         "images, within 1.5 where test images are moved by a pixel, too; full width of the other "
         "network comes within 3.1 points in 10 epochs",
         ("benchmarks.sketching.training.cifar_rows",
          "benchmarks.sketching.residual.residual_rows"),
         ("sketching.cifar_accuracy_q3", "sketching.cifar_accuracy_q6",
          "sketching.cifar10_q6_accuracy_full", "sketching.cifar10_q6_accuracy_residual",
          "sketching.cifar10_q6_accuracy_residual_moved",
          "sketching.cifar_accuracy_original")),
    Item("Table 3", "PSNR and SSIM of the paper's attacker", "yes",
         "within 0.1 dB up to Q9; stronger attackers get more back",
         ("benchmarks.sketching.tables.table_rows",),
         ("sketching.psnr_q3", "sketching.cifar_psnr_q3", "sketching.ssim_q3")),
    Item("Table 4, MNIST", "NegDL above noisy gradients", "in part",
         "in accuracy; the two protect different things",
         ("benchmarks.sketching.peer.table_4_rows", "benchmarks.sketching.peer.peer_rows"),
         ("sketching.table4_q1", "sketching.table4_q6", "sketching.table4_q12",
          "sketching.table4_original", "sketching.dpsgd_accuracy_eps8")),
    Item("Table 4, CIFAR-10", "the same", "in part",
         "with our whitened network; the reference trains dense layers over two convolutions of "
         "64 planes that were learned on CIFAR-100, which is in no registry, for 250 epochs",
         ("benchmarks.sketching.training.cifar_rows",),
         ("sketching.cifar_table4_q1", "sketching.cifar_table4_q6", "sketching.cifar_table4_q12",
          "sketching.cifar_table4_original")),
    Item("Table 5", "G of Q1 to Q12", "yes", "within 2%",
         ("benchmarks.sketching.tables.table_rows",), ("sketching.g_q3", "sketching.cifar_g_q3")),
)  # fmt: skip

_ROBUST = "benchmarks.tagging.robustness"
_TAGGING = (
    Item("Definition 1", "ε-differential privacy", "definition", _DP,
         ("blindsight.privacy.Guarantee",)),
    Item("Equations 1, 2", "ML-GCN and its loss", "yes",
         "the printed loss is a likelihood: its negative is minimised",
         ("blindsight.tagging.gcn.MLGCN", "blindsight.tagging.gcn.TaggingLoss")),
    Item("Equations 3 to 6", "Laplace noise on outputs", "yes", "as printed",
         ("blindsight.tagging.paper.PaperLaplace",)),
    Item("Theorem 1", "each noisy output is ε-private", "no",
         "outputs have no bound; clipped, C of them cost 2BC/scale",
         ("blindsight.tagging.paper.PaperLaplace",), (), ("P2-ML-GCN outputs",)),
    Item("Equations 7, 8", "P2-ML-GCN", "yes", "", ("blindsight.tagging.P2MLGCN",)),
    Item("Lemmas 1, 2, Equations 9 to 13", "bias of the loss", "no",
         "the second moment of Lap(b) is 2b², and C labels have noise: C(S/ε)²/4",
         (f"{_ROBUST}.loss_bias", f"{_ROBUST}.printed_loss_bias")),
    Item("Equation 14", "RP2-ML-GCN", "in part",
         "λ against the sum over records; against the mean loss it destroys the model",
         ("blindsight.tagging.RP2MLGCN",), ("tagging.fig4.coco-subset.rp2.mean-loss.mAP",)),
    Item("Equations 15 to 18", "least squares, ridge, shrinkage", "in part",
         "the norm shrinks, not every entry", (f"{_ROBUST}.estimated_weights",)),
    Item("Lemma 3", "the mean of an unbiased estimate", "definition"),
    Item("Lemma 4", "three rules of traces", "in part", "tr(EFG) = tr(FEG) is wrong"),
    Item("Equation 19", "error of the estimate", "yes", "", (f"{_ROBUST}.estimation_error",)),
    Item("Equation 20", "variance of least squares is σ²", "no",
         "its last line takes tr((xx')⁻¹) for 1; it is the sum of reciprocal eigenvalues",
         (f"{_ROBUST}.weight_variance", f"{_ROBUST}.printed_variance")),
    Item("Equation 21", "ridge has z times the variance", "in part",
         "z is not the ratio, because Equation 20 is wrong; ridge's variance is still smaller",
         (f"{_ROBUST}.weight_variance",)),
    Item("Observation 1, Equation 22", "S_b lowers the bias", "in part",
         "by its square, not linearly; what is gained in accuracy is paid in privacy, ε/S_b",
         (f"{_ROBUST}.loss_bias",)),
    Item("Equations 23 to 25, Theorem 2", "noise on outputs protects the weights", "no",
         "noise is drawn anew at every step and averages out",
         ("blindsight.tagging.P2MLGCN",), (), ("P2-ML-GCN weights",)),
    Item("Equations 26 to 28, Theorem 3", "noise on outputs protects the features", "no",
         "the claimed ε goes to 0 as weights get small, while what an answer tells stays",
         ("blindsight.audit.methods.tagging.verdicts",), (), ("P2-ML-GCN features",)),
    Item("Equation 29, Corollary 1", "any ε for the weights", "no", "as Theorem 2",
         ("blindsight.tagging.Corollary",), (), ("P2-ML-GCN weights",)),
    Item("Equation 30, Corollary 2", "any ε for the features", "no", "as Theorem 3",
         ("blindsight.tagging.Corollary",), (), ("P2-ML-GCN features",)),
    Item("Figure 1 (VOC2007)", "accuracy at ε 8 < 10 < 30 < ML-GCN", "in part",
         "VOC2007's images are in no registry: scene and VOC2012 stand in; with S = C, the text, "
         "the order comes out in OP and mAP; with S = 1, the authors' code, the noise is too small "
         "to order anything: all four are within 0.003 of each other in OP",
         ("benchmarks.tagging.figures.figure_rows",),
         ("tagging.fig1.SC.order.OP.scene.reproduces", "tagging.fig1.SC.order.scene.reproduces",
          "tagging.fig1.S1.order.OP.scene.reproduces",
          "tagging.fig1.S1.order.OP.voc2012-subset.reproduces",
          "tagging.fig1.S1.order.voc2012-subset.reproduces")),
    Item("Figure 2 (MS-COCO)", "the same", "in part",
         "on 4,500 images of COCO; with S = 1 in mAP, not in OP, where all are within 0.002",
         ("benchmarks.tagging.figures.figure_rows",),
         ("tagging.fig2.SC.order.OP.coco-subset.reproduces",
          "tagging.fig2.SC.order.coco-subset.reproduces",
          "tagging.fig2.S1.order.OP.coco-subset.reproduces",
          "tagging.fig2.S1.order.coco-subset.reproduces")),
    Item("Figure 3", "λ = 0.5 and S_b = 0.8 are best", "in part",
         "λ = 0.5 is above 0.1 everywhere, and 0.9 is above 0.5 in OP everywhere; S_b = 0.8 "
         "changes OP by at most 0.002 with S = 1",
         ("benchmarks.tagging.figures.claim_rows",),
         ("tagging.fig3a.S1.half_above_least.OP.coco-subset.reproduces",
          "tagging.fig3a.S1.half_above_most.OP.coco-subset.reproduces",
          "tagging.fig3b.S1.bound_above_none.OP.coco-subset.reproduces",
          "tagging.fig3a.S1.half_above_least.OP.scene.reproduces",
          "tagging.fig3a.S1.half_above_most.OP.scene.reproduces",
          "tagging.fig3b.S1.bound_above_none.OP.scene.reproduces",
          "tagging.fig3a.S1.half_above_least.OP.voc2012-subset.reproduces",
          "tagging.fig3a.S1.half_above_most.OP.voc2012-subset.reproduces",
          "tagging.fig3b.S1.bound_above_none.OP.voc2012-subset.reproduces")),
    Item("Figure 4", "RP2 above P2, S_b above none", "in part",
         "RP2 with S = 1, the authors' code, everywhere, in OP and mAP; with S = C not on COCO; "
         "S_b = 0.8 changes nothing on VOC2012",
         ("benchmarks.tagging.figures.figure_rows",),
         ("tagging.fig4.S1.rp2_above_p2.OP.coco-subset.reproduces",
          "tagging.fig4.rp2_above_p2.OP.coco-subset.reproduces",
          "tagging.fig4.S1.rp2_above_p2.OP.scene.reproduces",
          "tagging.fig4.S1.rp2_above_p2.OP.voc2012-subset.reproduces",
          "tagging.fig4.S1.p2-sb_above_p2.OP.voc2012-subset.reproduces",
          "tagging.fig4.S1.rp2_above_p2.coco-subset.reproduces",
          "tagging.fig4.S1.rp2_above_p2.scene.reproduces",
          "tagging.fig4.S1.rp2_above_p2.voc2012-subset.reproduces",
          "tagging.fig4.voc2012-subset.S1.p2.OP", "tagging.fig4.voc2012-subset.S1.rp2.OP",
          "tagging.rp2_minus_p2_op.coco-subset", "tagging.rp2_minus_p2_op.scene")),
    Item("Figure 5", "the corollaries above noise on weights or features", "in part",
         "Corollary 2 is above noise on features everywhere. Corollary 1 is above noise on weights "
         "on VOC2012; on COCO and scene not in mAP at ε = 1 and not in OP at ε = 0.1, where the "
         "noise of [1] does better",
         ("benchmarks.tagging.figures.claim_rows",),
         ("tagging.fig5.S1.corollary1_above_weights.eps1.OP.coco-subset.reproduces",
          "tagging.fig5.S1.corollary1_above_weights.eps1.mAP.coco-subset.reproduces",
          "tagging.fig5.S1.corollary1_above_weights.eps0.1.OP.coco-subset.reproduces",
          "tagging.fig5.S1.corollary2_above_features.eps1.OP.coco-subset.reproduces",
          "tagging.fig5.S1.corollary2_above_features.eps1.mAP.coco-subset.reproduces",
          "tagging.fig5.S1.corollary1_above_weights.eps1.OP.voc2012-subset.reproduces",
          "tagging.fig5.S1.corollary1_above_weights.eps1.mAP.voc2012-subset.reproduces")),
    Item("The authors' sheet", "twelve metrics behind the figures", "in part",
         "no F1 can be above the mean of precision and recall",
         ("benchmarks.tagging.published.published_rows",),
         ("tagging.published.f1_above_the_mean",)),
)  # fmt: skip

PAPERS: tuple[tuple[str, str, tuple[Item, ...]], ...] = (
    ("PHashing and PITQ", "Wang, Lu and Zhang 2020, on private hashing.", _HASHING),
    ("DPHE", "Yonetani, Boddeti, Kitani and Sato 2017, on doubly permuted encryption.", _FEDERATED),
    ("DPP-DML", "Li, Pan, Sui and Tsang, on metric learning under pairwise privacy.", _METRIC),
    ("NegDL", "Zhao, Zhang, Xiang and Tian, on learning from negative databases.", _SKETCHING),
    ("P2-ML-GCN and RP2-ML-GCN", "Xu, Cai and Li 2022, on private multi-label tagging.", _TAGGING),
)

"""Learn from images, and search them, without anyone seeing them.

Five protections, one for each point where a visual pipeline gives something away:

- `hashing` and `index`: private codes for image search (what you store),
- `federated`: encrypted sums of model updates (what you share),
- `metric`: distances learned from private pairs (what you compare),
- `sketching`: statistics with a proof, and the paper's sketches (what you send),
- `tagging`: tags with a privately trained head (what you answer),

under one idea of a guarantee (`privacy`) and one audit (`audit`).

The names below can be imported from here and are kept; everything else can be reached and may
change. Nothing is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blindsight import audit, data, encoders
    from blindsight.app.audit import AuditResult, audit_methods, audit_release
    from blindsight.app.budget import BudgetSummary, budget, grant_budget, verify_budget
    from blindsight.app.compare import Comparison, cluster, compare
    from blindsight.app.encoders import check_encoder, export_encoder
    from blindsight.app.learn_metric import LearnedMetric, learn_metric
    from blindsight.app.protect import ProtectedPhotos, protect
    from blindsight.app.release import (
        AnsweredRequest,
        OpenedFile,
        OpenedRelease,
        answer_request,
        hand_over,
        open_release,
        open_shared,
    )
    from blindsight.app.search import SearchResult, find_duplicates, search
    from blindsight.app.send import (
        LearnedFromStatistics,
        SentStatistics,
        learn_from_statistics,
        send_statistics,
    )
    from blindsight.app.sketch import RecoveredImages, SketchedImages, recover_sketches, sketch
    from blindsight.app.tag import Tags, publish_tags, tag
    from blindsight.app.train_on_sketches import TrainedOnSketches, train_on_sketches
    from blindsight.app.train_tagger import TrainedTagger, start_tagger, train_tagger
    from blindsight.app.train_together import TrainedTogether, train_together
    from blindsight.app.watch import WatchedFolder, watch
    from blindsight.audit.assertions import (
        PrivacyViolation,
        assert_private,
        assert_private_training,
    )
    from blindsight.core.errors import BlindsightError, BudgetExceeded, NotProven, UnchargedRelease
    from blindsight.federated import FederatedClassifier
    from blindsight.hashing import (
        ADSH,
        DPSH,
        DSH,
        ITQ,
        KSH,
        LSH,
        PITQ,
        SDH,
        SH,
        CodebookHasher,
        HashNet,
        PHashing,
    )
    from blindsight.index import HammingIndex, Hits, MilvusIndex
    from blindsight.metric import DPPDML, DPPMetric, PairGraph
    from blindsight.privacy import (
        Assumption,
        Audited,
        Cost,
        Disclosure,
        Door,
        Guarantee,
        Ledger,
        Planned,
        Protected,
        Vault,
    )
    from blindsight.sketching import (
        CodebookSketcher,
        FeatureStatistics,
        FlippedBits,
        NegativeSketcher,
        NegDL,
        PrivateHead,
        fit_from_statistics,
        merge_statistics,
    )
    from blindsight.tagging import (
        P2MLGCN,
        RP2MLGCN,
        CodebookAnswers,
        DPTraining,
        Exact,
        PrivateTagger,
        encoder_prior,
    )

__all__ = [
    "ADSH",
    "DPPDML",
    "DPSH",
    "DSH",
    "ITQ",
    "KSH",
    "LSH",
    "P2MLGCN",
    "PITQ",
    "RP2MLGCN",
    "SDH",
    "SH",
    "AnsweredRequest",
    "Assumption",
    "AuditResult",
    "Audited",
    "BlindsightError",
    "BudgetExceeded",
    "BudgetSummary",
    "CodebookAnswers",
    "CodebookHasher",
    "CodebookSketcher",
    "Comparison",
    "Cost",
    "DPPMetric",
    "DPTraining",
    "Disclosure",
    "Door",
    "Exact",
    "FeatureStatistics",
    "FederatedClassifier",
    "FlippedBits",
    "Guarantee",
    "HammingIndex",
    "HashNet",
    "Hits",
    "LearnedFromStatistics",
    "LearnedMetric",
    "Ledger",
    "MilvusIndex",
    "NegDL",
    "NegativeSketcher",
    "NotProven",
    "OpenedFile",
    "OpenedRelease",
    "PHashing",
    "PairGraph",
    "Planned",
    "PrivacyViolation",
    "PrivateHead",
    "PrivateTagger",
    "Protected",
    "ProtectedPhotos",
    "RecoveredImages",
    "SearchResult",
    "SentStatistics",
    "SketchedImages",
    "Tags",
    "TrainedOnSketches",
    "TrainedTagger",
    "TrainedTogether",
    "UnchargedRelease",
    "Vault",
    "WatchedFolder",
    "__version__",
    "answer_request",
    "assert_private",
    "assert_private_training",
    "audit",
    "audit_methods",
    "audit_release",
    "budget",
    "check_encoder",
    "cluster",
    "compare",
    "data",
    "encoder_prior",
    "encoders",
    "export_encoder",
    "find_duplicates",
    "fit_from_statistics",
    "grant_budget",
    "hand_over",
    "learn_from_statistics",
    "learn_metric",
    "merge_statistics",
    "open_release",
    "open_shared",
    "protect",
    "publish_tags",
    "recover_sketches",
    "search",
    "send_statistics",
    "sketch",
    "start_tagger",
    "tag",
    "train_on_sketches",
    "train_tagger",
    "train_together",
    "verify_budget",
    "watch",
]

__version__ = "0.2.0"

_HOMES: dict[str, tuple[str, ...]] = {
    "app.audit": ("AuditResult", "audit_methods", "audit_release"),
    "app.budget": ("BudgetSummary", "budget", "grant_budget", "verify_budget"),
    "app.encoders": ("check_encoder", "export_encoder"),
    "app.protect": ("ProtectedPhotos", "protect"),
    "app.watch": ("WatchedFolder", "watch"),
    "app.release": (
        "AnsweredRequest",
        "OpenedFile",
        "OpenedRelease",
        "answer_request",
        "hand_over",
        "open_release",
        "open_shared",
    ),
    "app.compare": ("Comparison", "cluster", "compare"),
    "app.learn_metric": ("LearnedMetric", "learn_metric"),
    "app.send": (
        *("LearnedFromStatistics", "SentStatistics"),
        *("learn_from_statistics", "send_statistics"),
    ),
    "app.sketch": ("RecoveredImages", "SketchedImages", "recover_sketches", "sketch"),
    "app.train_on_sketches": ("TrainedOnSketches", "train_on_sketches"),
    "app.tag": ("Tags", "publish_tags", "tag"),
    "app.train_tagger": ("TrainedTagger", "start_tagger", "train_tagger"),
    "app.train_together": ("TrainedTogether", "train_together"),
    "app.search": ("SearchResult", "find_duplicates", "search"),
    "audit.assertions": ("PrivacyViolation", "assert_private", "assert_private_training"),
    "core.errors": ("BlindsightError", "BudgetExceeded", "NotProven", "UnchargedRelease"),
    "federated": ("FederatedClassifier",),
    "hashing": (
        *("ADSH", "DPSH", "DSH", "HashNet", "ITQ", "KSH", "LSH", "SDH", "SH"),
        *("CodebookHasher", "PHashing", "PITQ"),
    ),
    "index": ("HammingIndex", "Hits", "MilvusIndex"),
    "metric": ("DPPDML", "DPPMetric", "PairGraph"),
    "privacy": (
        *("Assumption", "Audited", "Cost", "Disclosure", "Door", "Guarantee"),
        *("Ledger", "Planned", "Protected", "Vault"),
    ),
    "sketching": (
        *("CodebookSketcher", "FeatureStatistics", "FlippedBits", "NegDL", "NegativeSketcher"),
        *("PrivateHead", "fit_from_statistics", "merge_statistics"),
    ),
    "tagging": (
        "CodebookAnswers",
        "DPTraining",
        "Exact",
        "P2MLGCN",
        "PrivateTagger",
        "RP2MLGCN",
        "encoder_prior",
    ),
}
_MODULES = ("audit", "data", "encoders")
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _HOME:
        from blindsight.core.checks import core_module

        module = core_module(f"{__name__}.{_HOME.get(name, name)}")
        return module if name in _MODULES else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""`PrivateTagger`: multi-label recognition whose answers, and training data, are protected.

    tagger = PrivateTagger(epsilon=10, training_epsilon=2).fit(X, Y, ledger=ledger)
    tagger.predict(X_asked, ledger=ledger)          # 0/1 tags; charged per answered query, before they are released

`calibration="proven"` (default) releases answers by a codebook, clipped Laplace or Gaussian noise, or noisy top-k, and
trains by DP-SGD on noisy label counts. `calibration="paper"` is P2-ML-GCN to the letter: Lap(S_b S / ε) in the training
loss (Equation 8) and on the answers (Equation 6), exact counts, ordinary training; with `robust` > 0 RP2 (Equation 14).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks
from blindsight.core.errors import BudgetExceeded, InvalidData
from blindsight.privacy import accounting
from blindsight.privacy.entropy import release_rng, training_rng
from blindsight.privacy.guarantee import Cost, Guarantee
from blindsight.tagging import model_file
from blindsight.tagging.label_graph import label_matrix
from blindsight.tagging.learning import Learned, Recipe, learn
from blindsight.tagging.outputs import (
    Answers,
    CodebookAnswer,
    GaussianScores,
    LaplaceScores,
    PaperLaplace,
    Release,
    TopTags,
)
from blindsight.tagging.scaling import feature_rows

__all__ = ["PrivateTagger"]

_RELEASES = ("codebook", "laplace", "gaussian", "top-k")


class PrivateTagger(BaseEstimator):
    """Tags for images, from features, with private answers.

    Parameters
    ----------
    epsilon: the budget of one answered query (claimed under "paper", proven otherwise).
    calibration: "proven" or "paper".
    release: "codebook", "laplace", "gaussian" or "top-k" (proven calibration).
    delta: of one answer, for "gaussian".
    bound: logits are clipped to ±bound before Laplace, Gaussian or top-k noise.
    k: how many tags "top-k" names.
    codebook: "graded", "sets", or your own public words (k, labels) in [0, 1].
    n_words: the codebook's size; None chooses it for the budget.
    postprocess: whether noisy scores are read through the label graph (costs nothing).
    training_epsilon, training_delta: DP-SGD's budget per training record; None trains without it.
    graph_epsilon: the budget of the label counts, per record; spent under "proven" only.
    codebook_epsilon: the budget, per record, of what a graded codebook (or `postprocess`) must know about logits.
    max_labels: labels kept of one record when counting.
    graph: your own public co-occurrence counts (labels, labels); nothing is spent on counting then.
    threshold, reweight: ML-GCN's tau and p.
    head: "gcn", "linear" or "auto" (the graph convolution; under DP-SGD the linear head, smoothed by the graph).
    hidden: the width of the first graph convolution.
    label_vectors: "glove", "random", your own (labels, d), or None (GloVe where `classes` are named).
    classes: the labels' names.
    public, public_components: features of public images, and how many of their directions the head works in.
    sensitivity, bound_factor: the paper's S ("C" as in the text, "1" as in its code) and S_b.
    train_noise: whether the paper's noise is also in the training loss (Equation 8).
    clip: bound on logits under paper calibration; None leaves them unbounded, as printed, and nothing is proven.
    robust: λ of the Frobenius term (Equation 14).
    corollary, gamma, factor: 1 or 2 imposes that corollary's conditions, with γ and P (or Q).
    epochs, batch_size, learning_rate: of training; None uses what suits the way of training.
    max_queries: refuse after this many answers of this object, ledger or not; None leaves it to the ledger.
    random_state: None draws from the operating system; a seed makes a simulation.

    Guarantee
    ---------
    `guarantee_`, per query: whatever two images might have been asked about, the probability of the released answer
    differs by a factor of at most e^epsilon. `training_guarantee_`, per training record: the weights, and so all
    answers together. Answers about the same image add up: pass a ledger.
    """

    def __init__(
        self,
        epsilon: float = 10.0,
        *,
        calibration: Literal["proven", "paper"] = "proven",
        release: str = "codebook",
        delta: float = 1e-6,
        bound: float = 5.0,
        k: int = 3,
        codebook: Any = "graded",
        n_words: int | None = None,
        postprocess: bool = True,
        training_epsilon: float | None = 2.0,
        training_delta: float = 1e-5,
        graph_epsilon: float = 1.0,
        codebook_epsilon: float = 0.5,
        max_labels: int = 5,
        graph: Any = None,
        threshold: float = 0.4,
        reweight: float = 0.2,
        head: Literal["auto", "gcn", "linear"] = "auto",
        hidden: int = 1024,
        label_vectors: Any = None,
        classes: Any = None,
        public: Any = None,
        public_components: int = 128,
        sensitivity: Literal["C", "1"] = "C",
        bound_factor: float = 1.0,
        train_noise: bool = True,
        clip: float | None = None,
        robust: float = 0.0,
        corollary: Literal[1, 2] | None = None,
        gamma: float = 10.0,
        factor: float = 0.1,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        max_queries: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.calibration = calibration
        self.release = release
        self.delta = delta
        self.bound = bound
        self.k = k
        self.codebook = codebook
        self.n_words = n_words
        self.postprocess = postprocess
        self.training_epsilon = training_epsilon
        self.training_delta = training_delta
        self.graph_epsilon = graph_epsilon
        self.codebook_epsilon = codebook_epsilon
        self.max_labels = max_labels
        self.graph = graph
        self.threshold = threshold
        self.reweight = reweight
        self.head = head
        self.hidden = hidden
        self.label_vectors = label_vectors
        self.classes = classes
        self.public = public
        self.public_components = public_components
        self.sensitivity = sensitivity
        self.bound_factor = bound_factor
        self.train_noise = train_noise
        self.clip = clip
        self.robust = robust
        self.corollary = corollary
        self.gamma = gamma
        self.factor = factor
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_queries = max_queries
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, ledger: Any = None, validation: Any = None, progress: Any = None) -> PrivateTagger:
        """Learn from features (n, D) and labels (n, C) of 0 and 1; the ledger is charged per record before training.

        `validation` (features, labels) adds mean average precision to the learning curve of ordinary training.
        """
        self._check()
        rows, labels = feature_rows(X), label_matrix(y)
        if len(rows) != len(labels):
            raise InvalidData(f"X and y must have as many rows, got {len(rows)} and {len(labels)}.")
        recipe = self._recipe(labels.shape[1])
        rng, simulation = training_rng(self.random_state)
        cost = recipe.cost(len(rows), rows.shape[1], labels.shape[1])
        if ledger is not None:
            ledger.charge(cost, what="tagger: training")
        secret = rng if simulation else release_rng(None)[0]
        self.learned_: Learned = learn(
            recipe, rows, labels, rng=rng, secret=secret, validation=validation, progress=progress
        )
        self.curves_ = self.learned_.curves
        self.n_features_in_, self.n_labels_ = rows.shape[1], labels.shape[1]
        names = self.classes if self.classes is not None else range(self.n_labels_)
        self.classes_ = np.array([str(name) for name in names])
        self.release_ = self._release(self.learned_)
        self.training_guarantee_ = self._training_guarantee(recipe, cost, simulation)
        self.guarantee_ = self._answer_guarantee(simulation)
        self.answered_ = 0
        # Which features X are, for whoever saves the model beside its extractor: {"kind": ..., "size": ...}.
        self.extractor_: dict[str, Any] | None = None
        return self

    def answer(self, X: Any, *, ledger: Any = None) -> Answers:
        """Private tags and scores; the ledger is charged for every row before anything is released."""
        logits = self.logits(X)
        self._charge(len(logits), ledger)
        rng, _ = self._dice()
        return self.release_.answer(logits, rng=rng)

    def predict(self, X: Any, *, ledger: Any = None) -> NDArray[np.uint8]:
        """Private tags (n, C) of 0 and 1. One call is one release a row: asking again costs again."""
        return self.answer(X, ledger=ledger).tags.astype(np.uint8)

    def decision_function(self, X: Any, *, ledger: Any = None) -> NDArray[np.float64]:
        """Private scores (n, C) that rank the labels. One call is one release a row."""
        return self.answer(X, ledger=ledger).scores

    def logits(self, X: Any) -> NDArray[np.float64]:
        """The model's own outputs, without noise: they must not leave the machine."""
        check_is_fitted(self, "learned_")
        return self.learned_.logits(feature_rows(X, n_features=self.n_features_in_))

    def query_cost(self, n: int = 1) -> Cost:
        """What `n` answers cost together."""
        check_is_fitted(self, "release_")
        return accounting.compose([self.release_.cost] * checks.whole("n", n))

    def save(self, path: str | Path) -> None:
        """One safetensors file: the model, the codebook and both guarantees. Under "paper" it is not private."""
        check_is_fitted(self, "learned_")
        model_file.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> PrivateTagger:
        """Read back what `save` wrote; anything else is refused."""
        return model_file.load(cls, path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        tags.non_deterministic = True
        return tags

    def _check(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("calibration", self.calibration, ("proven", "paper"))
        checks.one_of("release", self.release, _RELEASES)
        if isinstance(self.codebook, str):
            checks.one_of("codebook", self.codebook, ("graded", "sets"))
        if self.max_queries is not None:
            checks.whole("max_queries", self.max_queries, least=0)

    def _recipe(self, n_labels: int) -> Recipe:
        paper = self.calibration == "paper"
        noise = 0.0
        if paper and self.train_noise:
            noise = PaperLaplace(
                epsilon=self.epsilon,
                n_labels=n_labels,
                sensitivity=self.sensitivity,
                bound_factor=self.bound_factor,
            ).scale
        return Recipe(
            private=not paper,
            training_epsilon=None if paper else self.training_epsilon,
            training_delta=self.training_delta,
            graph_epsilon=self.graph_epsilon,
            codebook_epsilon=self.codebook_epsilon,
            max_labels=self.max_labels,
            graph=self.graph,
            threshold=self.threshold,
            reweight=self.reweight,
            head=self.head,
            hidden=self.hidden,
            label_vectors=self.label_vectors,
            classes=self.classes,
            public=None if paper else self.public,
            public_components=self.public_components,
            noise_scale=noise,
            robust=self.robust,
            corollary=self.corollary if paper else None,
            gamma=self.gamma,
            factor=self.factor,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            codebook=self.codebook if not paper and self.release == "codebook" else None,
            n_words=self.n_words,
            epsilon=self.epsilon,
            confidence=not paper and self.postprocess and self.release in ("laplace", "gaussian"),
            spread=not paper
            and self.release == "codebook"
            and isinstance(self.codebook, str)
            and self.codebook == "graded",
        )

    def _release(self, learned: Learned) -> Release:
        n = learned.n_labels
        if self.calibration == "paper":
            return PaperLaplace(
                epsilon=self.epsilon,
                n_labels=n,
                sensitivity=self.sensitivity,
                bound_factor=self.bound_factor,
                clip=self.clip,
            )
        tree, confidence = (learned.tree, learned.confidence) if self.postprocess else (None, None)
        if self.release == "laplace":
            return LaplaceScores(epsilon=self.epsilon, n_labels=n, bound=self.bound, tree=tree, confidence=confidence)
        if self.release == "gaussian":
            return GaussianScores(
                epsilon=self.epsilon, delta=self.delta, n_labels=n, bound=self.bound, tree=tree, confidence=confidence
            )
        if self.release == "top-k":
            conditional = learned.graph.conditional if self.postprocess else None
            return TopTags(epsilon=self.epsilon, k=min(self.k, n), bound=self.bound, conditional=conditional)
        assert learned.codebook is not None  # noqa: S101  (learned with this release)
        return CodebookAnswer(epsilon=self.epsilon, codebook=learned.codebook)

    def _charge(self, count: int, ledger: Any) -> None:
        if self.max_queries is not None and self.answered_ + count > self.max_queries:
            raise BudgetExceeded(
                f"{count} more answers were asked for, but only {self.max_queries - self.answered_} of "
                f"{self.max_queries} are left (max_queries). Nothing was released."
            )
        if ledger is not None:
            ledger.charge(self.query_cost(count), what=f"tagger: {count} answers")
        self.answered_ += count

    def _dice(self) -> tuple[Any, bool]:
        if self.release_.sampler == "exact":
            return release_rng(self.random_state)
        return training_rng(self.random_state)

    def _training_guarantee(self, recipe: Recipe, cost: Cost, simulation: bool) -> Guarantee:
        return Guarantee(
            mechanism=recipe.mechanism,
            unit="record",
            neighbours="add or remove one",
            epsilon=cost.epsilon,
            delta=cost.delta,
            model="central",
            claimed=self.epsilon * self.factor if recipe.corollary == 1 else None,
            calibration=self.calibration,
            accountant="privacy-loss distribution of the sampled Gaussian; basic composition of the parts",
            assumptions=recipe.assumptions,
            sampler="float",
            simulation=simulation,
        )

    def _answer_guarantee(self, simulation: bool) -> Guarantee:
        cost = self.release_.cost
        return Guarantee(
            mechanism=self.release_.mechanism,
            unit="query",
            epsilon=cost.epsilon,
            delta=cost.delta,
            model="central",
            claimed=self.release_.claimed,
            calibration=self.calibration,
            assumptions=(
                "neighbours are any two images asked about",
                "each further answer about the same image costs as much again",
            ),
            sampler=self.release_.sampler,
            simulation=simulation,
            also=(self.training_guarantee_.cost,),
        )

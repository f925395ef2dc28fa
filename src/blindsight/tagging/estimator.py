"""`PrivateTagger`: multi-label recognition that protects the images it learned from.

    tagger = PrivateTagger(training=DPTraining(epsilon=2), classes=names, public=features)
    tagger.fit(X, Y, ledger=ledger)
    tagger.predict(X_query)  # any number of exact answers: only training is charged

With `answers=CodebookAnswers(epsilon=10)` (or other noise) each answer also protects the queried
image, for publishing tags of private images. That is charged per image.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks
from blindsight.core.arrays import Bytes, Floats
from blindsight.core.errors import InvalidData, InvalidParameter, MissingData
from blindsight.evaluation.scores import mean_average_precision
from blindsight.privacy import accounting
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import RandomState, RecordSource, SeededSource, Source, keyed
from blindsight.privacy.estimator import Protected
from blindsight.privacy.guarantee import Cost, Guarantee
from blindsight.tagging import guarantee as guarantees
from blindsight.tagging.answer_codebook import (
    AnswerCodebook,
)
from blindsight.tagging.guarantee import (
    AnswerNoise,
    Answers,
    CodebookAnswers,
    Exact,
    LaplaceAnswers,
    NoCharge,
)
from blindsight.tagging.labels import (
    FromLabels,
    check_names,
    column_names,
    label_names,
    label_rows,
    log_odds,
)
from blindsight.tagging.learning import (
    facts_of,
    inputs_of,
    label_rates,
    learn,
    sum_exactly,
    words_from_scenes,
)
from blindsight.tagging.prior import (
    Inputs,
    Prior,
    private_rows,
)
from blindsight.tagging.training import (
    DPTraining,
    HeldOut,
    Ordinary,
    Training,
    Untrained,
)

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = ["TRAINING", "PrivateTagger"]

TRAINING = "training a tagger"
_TRAININGS = (DPTraining, Ordinary, Untrained)
_KEY_LOCK = Lock()
_DIGITS = 6  # of rounded logits, so that the same image gives the same value and noise
_ANSWERS = (Exact, CodebookAnswers, LaplaceAnswers)


@dataclasses.dataclass(frozen=True)
class _AnswerKey:
    """The id of a tagger's release of answers and the secret from which their noise is derived.

    In a simulation with a seed, `simulated` draws the noise instead of the secret.
    """

    release: str
    secret: bytes = dataclasses.field(repr=False)
    simulated: SeededSource | None = None


class PrivateTagger(Protected):
    """Tags of images, learned from their features with differential privacy.

    Parameters:
        training: `DPTraining(epsilon=2)` (one budget per training record), `Ordinary()` or
            `Untrained()`.
        answers: `Exact()`, or noise on each answer: `CodebookAnswers` or `LaplaceAnswers`.
        classes: the names of the labels (or their number), known without the records. None uses
            the columns of y, and `FromLabels(names)` names that were read from the records;
            nothing is proven then.
        public: features of public images of any subject. Code words of published answers are
            derived from them, and main directions if the prior has none.
        prior: public scores of the labels (`encoder_prior`), from which training starts, and the
            public directions of the features.
        random_state: None for the operating system's entropy; a seed makes a simulation.

    Guarantee:
        `guarantee_` holds per training record, one added or removed, for the weights and everything
        computed from them, so for all answers together. If answers have noise,
        `answer_guarantee_` holds per query, for any two images that might have been queried.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> X, Y = rng.normal(size=(400, 6)), rng.integers(0, 2, (400, 2))
        >>> tagger = PrivateTagger(DPTraining(epsilon=2), classes=["sea", "sky"], random_state=0)
        >>> tagger.fit(X, Y).predict(X[:3]).shape, tagger.guarantee_.unit
        ((3, 2), 'record')
    """

    _kind = "private tagger"

    def __init__(
        self,
        training: Training = DPTraining(),  # noqa: B008  (frozen)
        answers: Exact | AnswerNoise = Exact(),  # noqa: B008
        *,
        classes: Any = None,
        public: ArrayLike | None = None,
        prior: Prior | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.training = training
        self.answers = answers
        self.classes = classes
        self.public = public
        self.prior = prior
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        ledger: Ledger | None = None,
        key: str | None = None,
        n_records: int | None = None,
        validation: Any = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Learn from features and labels; the ledger is charged per record before training.

        Private values never cause an error: records that are not finite count as zeros, and a label
        is 1 if its value is above one half.

        Parameters:
            X: features (n, D).
            y: labels (n, C) of 0 and 1, dense or sparse.
            ledger: charged before training.
            key: name of the release in the ledger, which then charges repeated attempts once. Use
                it if the noise is the same each time (a vault's).
            n_records: the public number of records. Pass it if X is a part of them that was
                selected by their content, because the number of rows of X is then private.
            validation: features and labels of images that are not learned from. The mean average
                precision on them after each step is the learning curve in `owner_only_`, which is
                not saved.
            progress: called with (done, total).
        """
        self._check()
        if isinstance(self.training, Untrained):
            raise InvalidParameter(
                "Untrained() learns nothing from records: use from_public(classes, prior)."
            )
        self._note_feature_names(X)
        rows, spoiled = private_rows(X)
        labels = label_rows(y, classes=self.classes)
        if len(rows) != len(labels):
            raise InvalidData(f"X and y must have as many rows, got {len(rows)} and {len(labels)}.")
        public = len(rows) if n_records is None else checks.whole("n_records", n_records)
        names = label_names(self.classes, labels.shape[1], y)
        self._set_public(public, rows.shape[1], names)
        self.owner_only_ = {"records that were not finite": spoiled, "learning curve": []}
        self.guarantee_ = self.promise(**self.public_)
        total = sum_exactly
        if isinstance(self.training, DPTraining):
            state = self.random_state
            total = Door(
                self.guarantee_, what=TRAINING, ledger=ledger, random_state=state, key=key
            ).total
        elif ledger is not None:
            ledger.charge(self.guarantee_.costs, what=TRAINING, key=key)
        self.released_ = learn(
            self, rows, labels, total, HeldOut.of(validation, rows.shape[1], self.classes), progress
        )
        self._settle()
        return self

    @classmethod
    def from_public(cls, classes: Sequence[str] | int | None, prior: Prior, **params: Any) -> Self:
        """Make a tagger from public knowledge only, at epsilon 0: no record is used."""
        tagger = cls(params.pop("training", Untrained()), classes=classes, prior=prior, **params)
        if not isinstance(tagger.training, Untrained):
            raise InvalidParameter(
                "from_public takes training=Untrained(...): there is nothing to learn from."
            )
        tagger._check()
        names = label_names(classes, len(prior.offset))
        tagger._set_public(0, prior.weights.shape[1], names)
        tagger.guarantee_ = tagger.promise(**tagger.public_)
        tagger.released_, tagger.owner_only_ = {}, {}
        tagger._settle()
        return tagger

    def with_answers(self, answers: Exact | AnswerNoise, *, prior: Prior | None = None) -> Self:
        """Return the same model with another kind of answers.

        Nothing is learned, so the cost of training does not change.

        Parameters:
            answers: as the parameter of the class. `CodebookAnswers` without words get words from
                scenes that the prior simulates.
            prior: the public knowledge that the model was trained with. A model that was read from
                a file needs it, because the file does not contain `Prior.things`. By default the
                model's own.

        Returns:
            A fitted tagger.

        Raises:
            InvalidParameter: there is no source of words, or the model already has words.
        """
        check_is_fitted(self, "public_")
        tagger = copy.copy(self)
        tagger.answers, tagger.public_ = answers, dict(self.public_)
        tagger._check()
        if isinstance(answers, CodebookAnswers):
            if "words" in self.released_:
                raise InvalidParameter("this model has learned the words of its answers already.")
            words = answers.words
            if words is None:
                words = words_from_scenes(self, prior or self.prior, answers)
            tagger.public_ |= words.to_fields()
        tagger._settle()
        return tagger

    def promise(self, **public: object) -> Guarantee:
        """Return the guarantee per training record, from parameters and public facts only."""
        return guarantees.of_training(
            self.training,
            facts_of(public),
            public_names=bool(public["named"]),
            entropy=self.entropy_,
        )

    def logits(self, X: ArrayLike) -> Floats:
        """Return the exact outputs of the model.

        They may be published if training is private; otherwise they are for the owner only.
        """
        check_is_fitted(self, "released_")
        self._check_feature_names(X)
        rows, _ = private_rows(X, n_features=self.n_features_in_)
        scores = np.broadcast_to(self.offset_, (len(rows), len(self.offset_))).copy()
        if self.weights_ is not None and self.inputs_ is not None:
            scores += self.inputs_(rows) @ self.weights_.T
        if self.prior_ is not None:
            scores += self.training.prior_weight * self.prior_(rows)
        return scores

    def answer(self, X: ArrayLike, *, ledger: Ledger | None = None) -> Answers:
        """Return tags and scores of images.

        If answers have noise and a ledger is given, each distinct image has one answer, which is
        the same whenever it is queried: in one call or later, by another thread or a pickled copy.
        Its noise is a function of a secret key and of the image's features. The ledger is charged
        once, before the first answer, and that charge covers every image. A tagger that is read
        from its file, which does not contain the key, has other noise and is charged again;
        `photos.publish` gives each image one permanent answer.

        Parameters:
            X: features (n, D).
            ledger: the account to charge; without one, every call draws new noise.

        Returns:
            The tags and scores of each row.

        Raises:
            BudgetExceeded: if the ledger has too little left; nothing is released.
        """
        check_is_fitted(self, "released_")
        mechanism, promised = self.answer_mechanism_, self.answer_guarantee_
        if promised is None or isinstance(mechanism, Exact):
            return mechanism.read(self.logits(X))
        if ledger is None:
            return self.noisy(self.logits(X))
        self._check_feature_names(X)
        rows, _ = private_rows(X, n_features=self.n_features_in_)
        images = [hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest() for row in rows]
        key, source = self._answer_source(images)
        door = Door(
            guarantees.of_repeated_answers(promised, entropy=source.name),
            what="tags of images, each answered once",
            ledger=ledger,
            random_state=source,
            key=f"answers {key.release}",
        )
        # Logits are computed row by row and rounded: in a product with other rows the last bits
        # differ, and the same image must give the same value and so the same noise.
        logits = np.vstack([self.logits(row[None]) for row in rows]).round(_DIGITS)
        released = door.release_each(
            guarantees.ANSWER, mechanism.value(logits), images, about=key.release
        )
        return mechanism.read(released)

    def _answer_source(self, images: Sequence[str]) -> tuple[_AnswerKey, Source]:
        """Return the key of all answers and the noise of these images, which is always the same.

        The key is made for the first answer. A pickled copy contains it, so that its answers are
        the same.
        """
        with _KEY_LOCK:  # Two threads at once would make two keys.
            if "_answer_key" not in self.__dict__:
                state = self.random_state
                simulated = state is not None and not hasattr(state, "stream")
                self._answer_key = _AnswerKey(
                    secrets.token_hex(16),
                    secrets.token_bytes(32),
                    SeededSource(state) if simulated else None,
                )
        key = self._answer_key
        if key.simulated is not None:
            return key, key.simulated
        noise = {image: keyed(key.secret, "answer", image.encode()) for image in images}
        return key, RecordSource(noise)

    def noisy(self, logits: ArrayLike, *, ledger: Ledger | NoCharge | None = None) -> Answers:
        """Add noise to logits, one release per row, charged as one answer per image."""
        mechanism, promised = self.answer_mechanism_, self.answer_guarantee_
        if promised is None or isinstance(mechanism, Exact):
            raise InvalidParameter(
                "these answers have no noise: choose answers=CodebookAnswers(...) or another."
            )
        values = mechanism.value(np.asarray(logits, np.float64))
        door = Door(
            promised,
            what=f"tags of {len(values)} images",
            ledger=cast("Ledger | None", ledger),
            random_state=self.random_state,
        )
        return mechanism.read(door.release(guarantees.ANSWER, values))

    def predict(self, X: ArrayLike, *, ledger: Ledger | None = None) -> Bytes:
        """Return tags (n, C) of 0 and 1."""
        return self.answer(X, ledger=ledger).tags.astype(np.uint8)

    def decision_function(self, X: ArrayLike, *, ledger: Ledger | None = None) -> Floats:
        """Return scores (n, C) that rank the labels."""
        return self.answer(X, ledger=ledger).scores

    def predict_proba(self, X: ArrayLike, *, ledger: Ledger | None = None) -> Floats:
        """Return probabilities (n, C), one per label."""
        return self.answer_mechanism_.probabilities(self.answer(X, ledger=ledger).scores)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the mean average precision on labelled images. It is as private as the images."""
        truth = label_rows(y, classes=tuple(str(name) for name in self.classes_))
        scores = self.decision_function(X)
        if sample_weight is None:
            return mean_average_precision(truth, scores)
        from sklearn.metrics import average_precision_score

        present = truth.any(axis=0)
        return float(
            average_precision_score(
                truth[:, present], scores[:, present], sample_weight=sample_weight
            )
        )

    def query_cost(self, n: int = 1) -> Cost:
        """The total cost of `n` answers about one image."""
        check_is_fitted(self, "released_")
        checks.whole("n", n)
        if self.answer_guarantee_ is None:
            return Cost(epsilon=0.0, unit="query")
        return accounting.compose([self.answer_guarantee_.cost] * n)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return parameters by name; with `deep` also the settings of training and answers.

        Examples:
            >>> PrivateTagger(DPTraining(epsilon=4)).get_params()["training__epsilon"]
            4
        """
        params: dict[str, Any] = super().get_params(deep=False)
        if deep:
            for name in ("training", "answers"):
                params |= {
                    f"{name}__{key}": value for key, value in _settings(params[name]).items()
                }
        return params

    def set_params(self, **params: object) -> Self:
        """Set parameters; `training__epsilon=4` replaces one setting of the training.

        Raises:
            InvalidParameter: there is no such parameter or setting.
        """
        own = {name: value for name, value in params.items() if "__" not in name}
        unknown = own.keys() - set(self._get_param_names())
        if unknown:
            raise InvalidParameter(f"PrivateTagger has no parameter {sorted(unknown)[0]!r}.")
        for name, value in own.items():
            setattr(self, name, value)
        for name, value in params.items():
            part, nested, setting = name.partition("__")
            if nested:
                settings = _settings(getattr(self, part, None))
                if part not in ("training", "answers") or setting not in settings:
                    raise InvalidParameter(f"PrivateTagger has no parameter {name!r}.")
                changed = dataclasses.replace(getattr(self, part), **{setting: value})
                setattr(self, part, changed)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        tags.non_deterministic = True
        return tags

    def _note_feature_names(self, X: ArrayLike) -> None:
        """Set `feature_names_in_` if X is a table with named columns, as scikit-learn does."""
        names = column_names(X)
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _check_feature_names(self, X: ArrayLike) -> None:
        names, fitted = column_names(X), getattr(self, "feature_names_in_", None)
        if names is not None and fitted is not None and list(names) != list(fitted):
            raise InvalidData(
                "X must have the columns of the training data in the same order; the first that "
                f"differs is {_first_difference(names, fitted)}."
            )

    def _check(self) -> None:
        if not isinstance(self.training, _TRAININGS):
            raise InvalidParameter(
                f"training must be DPTraining, Ordinary or Untrained, got {self.training!r}."
            )
        if not isinstance(self.answers, _ANSWERS):
            named = ", ".join(kind.__name__ for kind in _ANSWERS)
            raise InvalidParameter(f"answers must be one of {named}, got {self.answers!r}.")
        if self.prior is not None and not isinstance(self.prior, Prior):
            raise InvalidParameter(
                f"prior must be a Prior (see encoder_prior), got {type(self.prior).__name__}."
            )
        learns_words = isinstance(self.answers, CodebookAnswers) and self.answers.words is None
        if isinstance(self.training, Untrained) and learns_words:
            raise InvalidParameter(
                "CodebookAnswers learn their words from records: give words= or train."
            )

    def _set_public(self, n_records: int, n_features: int, names: tuple[str, ...]) -> None:
        """Set everything that is known before the records are used."""
        named = self.classes is not None and not isinstance(self.classes, FromLabels)
        self.public_ = {
            "classes": list(names),
            "named": named,
            "n_records": n_records,
            "n_features": n_features,
        }
        self.public_["width"], self.public_["centred"] = (
            n_features + 1,
            not isinstance(self.training, Untrained),
        )
        learns_words = isinstance(self.answers, CodebookAnswers) and self.answers.words is None
        makes_scenes = self.prior is not None and self.prior.things is not None
        self.public_["spread"] = learns_words and self.public is None and not makes_scenes
        if not isinstance(self.training, Untrained):
            self.public_ |= self._public_directions(n_records, n_features)
        if isinstance(self.answers, CodebookAnswers) and self.answers.words is not None:
            self.public_ |= self.answers.words.to_fields()
        if self.prior is not None:
            if self.prior.weights.shape != (len(names), n_features):
                raise InvalidData(
                    f"prior must score {len(names)} labels from {n_features} features, got "
                    f"{self.prior.weights.shape}."
                )
            self.public_ |= {
                "prior_weights": self.prior.weights,
                "prior_offset": self.prior.offset,
                "prior_unit": self.prior.unit,
            }

    def _public_directions(self, n_records: int, n_features: int) -> dict[str, Any]:
        """Return the directions that the head uses, of the prior or else of public images."""
        assert not isinstance(self.training, Untrained)  # noqa: S101  (it has no head)
        components = (
            self.training.components_for(n_records)
            if isinstance(self.training, DPTraining)
            else self.training.components
        )
        if self.public is not None and np.shape(self.public)[-1:] != (n_features,):
            raise InvalidData(
                f"public must have {n_features} features, got {np.shape(self.public)}."
            )
        if self.prior is not None and self.prior.directions is not None:
            directions = self.prior.directions[:, :components]
            if len(directions) != n_features:
                raise InvalidData(
                    f"prior must have directions of {n_features} features, got {len(directions)}."
                )
            return {"directions": directions, "width": directions.shape[1] + 1, "centred": True}
        if self.public is None:
            return {}
        inputs = Inputs.from_public(self.public, components=components)
        return {
            "centre": inputs.centre,
            "directions": cast("Floats", inputs.directions),
            "width": inputs.width,
            "centred": False,
        }

    def _settle(self) -> None:
        public, released = self.public_, self.released_
        self.n_features_in_, self.classes_ = int(public["n_features"]), np.array(public["classes"])
        self.n_labels_ = len(self.classes_)
        check_names([str(name) for name in public["classes"]])
        self.prior_ = (
            Prior(
                public["prior_weights"],
                public["prior_offset"],
                unit=bool(public.get("prior_unit", False)),
            )
            if "prior_weights" in public
            else None
        )
        self.inputs_, self.weights_ = None, None
        if isinstance(self.training, Untrained):
            if self.prior_ is None:
                raise MissingData("a tagger without training needs a prior.")
            self.offset_ = np.full(self.n_labels_, log_odds(self.training.rate))
        else:
            self.inputs_, self.weights_ = (
                inputs_of(public, released),
                np.ascontiguousarray(released["weights"]),
            )
            self.offset_ = log_odds(label_rates(released["counts"], int(public["n_records"])))
            if (
                self.weights_.shape != (self.n_labels_, self.inputs_.width)
                or len(self.offset_) != self.n_labels_
            ):
                raise InvalidData("its tables do not fit each other")
        self.answer_mechanism_ = self.answers
        if isinstance(self.answers, Exact) and "quotas" in released:
            self.answer_mechanism_ = self.answers.with_quotas(released["quotas"])
            if len(released["quotas"]) != self.n_labels_:
                raise InvalidData("its thresholds do not fit its labels")
        tables = released if "words" in released else public
        if isinstance(self.answers, CodebookAnswers) and "words" in tables:
            self.answer_mechanism_ = self.answers.with_words(AnswerCodebook.from_fields(tables))
        if isinstance(self.answer_mechanism_, CodebookAnswers):
            columns = (
                0
                if self.answer_mechanism_.words is None
                else self.answer_mechanism_.words.words.shape[1]
            )
            if columns != self.n_labels_:
                raise InvalidData(f"a codebook of answers must have {self.n_labels_} columns.")
        self.answer_guarantee_ = guarantees.of_answers(
            self.answer_mechanism_, self.n_labels_, entropy=self.entropy_
        )
        # Answers of another kind, or of another model, have other noise and are charged separately.
        self.__dict__.pop("_answer_key", None)

    def _saved_parameters(self) -> dict[str, Any]:
        """Return parameters by the name of their type, without those that are in `public_`."""
        seed = self.random_state
        return {
            "training": _named(self.training),
            "answers": _named(self.answers),
            "random_state": int(seed) if isinstance(seed, (int, np.integer)) else None,
        }

    @classmethod
    def _read_parameters(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if fields.keys() != {"training", "answers", "random_state"}:
            raise KeyError("parameters")
        return {
            "training": _from_named(fields["training"], _TRAININGS),
            "answers": _from_named(fields["answers"], _ANSWERS),
            "random_state": fields["random_state"],
        }


def _settings(value: Any) -> dict[str, Any]:
    """Return the settings of a frozen value by name."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _first_difference(requested: Sequence[str], fitted: Sequence[str]) -> str:
    for own, expected in zip(requested, fitted, strict=False):
        if own != expected:
            return f"{own!r} in place of {expected!r}"
    return f"their number, {len(requested)} in place of {len(fitted)}"


def _named(value: Any) -> dict[str, Any]:
    """Return a frozen value as plain fields, without the words of a codebook."""
    fields = {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if field.name not in ("words", "quotas")
    }
    return {"type": type(value).__name__, **fields}


def _from_named(fields: dict[str, Any], kinds: tuple[type, ...]) -> Any:
    chosen = {kind.__name__: kind for kind in kinds}[fields["type"]]
    return chosen(**{name: value for name, value in fields.items() if name != "type"})

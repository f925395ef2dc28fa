"""Federated training: several sites learn one classifier without sending their photos.

`train_together` simulates all sites in this process, with the code that runs across machines;
`blindsight.app.federation` runs one site. Both read data and make plans by the functions here.
"""

from __future__ import annotations

import functools
import operator
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app.defaults import federated_encoder, no_progress
from blindsight.app.hosting import share_file
from blindsight.app.result import JobResult, Progress, ResultTable, files_table
from blindsight.core import checks
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.core.parsing import one_parser
from blindsight.privacy import Guarantee

if TYPE_CHECKING:
    from blindsight.data.listing import FilesRead
    from blindsight.encoders import Encoder
    from blindsight.federated import FederatedClassifier
    from blindsight.federated.agreement import Agreement
    from blindsight.federated.deploy.plan import Plan
    from blindsight.federated.sums import Settings

__all__ = [
    "METHODS",
    "ROUNDS",
    "LabelledRows",
    "PlannedFederation",
    "TrainedTogether",
    "load_plan_encoder",
    "plan_federation",
    "read_labelled",
    "simulate_federation",
    "train_together",
]

PathText = str | Path
METHODS = ("statistics", "gradients", "updates")
ROUNDS = {"updates": 3, "gradients": 30}  # by default
_PUBLIC_PICTURES = 200  # built-in pictures that give the mean of features without public data
_STRENGTH = 1e-3


@dataclass(frozen=True)
class LabelledRows:
    """Rows of features with a class for each.

    Attributes:
        X: one row for each record.
        labels: class names, or class numbers.
        skipped: number of photos that cannot be read or do not have exactly one label.
        files: number of photos that were read, and the files that were not, if a folder was read.
    """

    X: NDArray[np.float64] = field(repr=False)
    labels: NDArray[Any] = field(repr=False)
    skipped: int = 0
    files: FilesRead | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The class names that occur, sorted; empty if labels are numbers."""
        return () if self.labels.dtype.kind in "iu" else tuple(sorted(set(map(str, self.labels))))


def read_labelled(
    data: PathText,
    *,
    labels: PathText | None = None,
    encoder: PathText | Encoder | None = None,
    model: PathText | None = None,
    progress: Progress = no_progress,
) -> LabelledRows:
    """Read a site's data: a folder of photos, or a file of rows.

    Parameters:
        data: a folder, or an .npz file with arrays X (rows) and y (class names or numbers).
        labels: for a folder: a table of labels, `FILE:COLUMN` or "keywords" (see
            `blindsight.data.label_tables`). By default a photo's label is the name of its first
            subfolder.
        encoder: for a folder: the encoder of photos, see `blindsight.encoders.open_encoder`.
        model: a file that `train_together` wrote and that will be used with these rows: its encoder
            is used, and any other is refused.
        progress: called with (stage, done, total).

    Raises:
        MissingData: there is no such folder or file.
        InvalidData: no photo has a label.
        HostileFile: the file does not contain rows and labels.
        InvalidParameter: the encoder is not the one that `model` was trained with.
    """
    path = Path(data)
    if model is not None:
        from blindsight.app.labelled_images import encoder_of_model

        encoder = encoder_of_model(Path(model), encoder)
    if not path.exists():
        raise MissingData(f"{path} does not exist. Check the path.")
    if path.is_dir():
        return _read_folder(path, labels, encoder, progress)
    if labels is not None:
        raise InvalidParameter("labels= is for a folder of photos: an .npz file has its own y.")
    try:
        with one_parser(), np.load(path, allow_pickle=False) as file:
            X, y = file["X"], file["y"]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise HostileFile(
            f"{path} must be an .npz file with arrays X and y: {type(error).__name__}."
        ) from error
    if y.ndim != 1 or len(y) != len(X) or y.dtype.kind not in "iuU":
        raise InvalidData(f"y in {path} must have a class name or number for each row of X.")
    return LabelledRows(checks.number_array("X", X, ndim=2), y)


def _read_folder(
    folder: Path, labels: PathText | None, encoder: PathText | Encoder | None, progress: Progress
) -> LabelledRows:
    from blindsight.app.labelled_images import encode_images, list_images
    from blindsight.encoders import open_encoder

    listed = list_images(str(folder), None, labels, None, leave_out=None)
    labelled = listed.labelled()
    if not len(labelled):
        raise InvalidData(
            f"no photo in {folder} has a label: put photos into a subfolder for each class, or "
            "give a table of labels."
        )
    opened = open_encoder("lite0" if encoder is None else encoder)
    images = encode_images(labelled, opened, None, None, "", progress)
    rows = images.features.astype(np.float64)
    return LabelledRows(rows, images.labels, len(listed) - len(rows), images.files)


@dataclass(frozen=True)
class PlannedFederation:
    """The plan of a federation and its guarantee.

    Attributes:
        settings: the settings of the secure sum.
        plan: the model and how it is trained.
        guarantee: the guarantee of the sums.
        advice: what to change if noise hides the result, or None.
    """

    settings: Settings
    plan: Plan
    guarantee: Guarantee
    advice: str | None


def plan_federation(
    *,
    sites: int,
    method: str | None = None,
    holders: int | None = None,
    names: Sequence[str] = (),
    classes: int | None = None,
    features: int | None = None,
    public: LabelledRows | None = None,
    encoder: PathText | Encoder | None = None,
    rounds: int | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    unit: str = "record",
    records: int = 1000,
    holdout: float = 0.0,
    learner: str = "proximal",
    strength: float = _STRENGTH,
    clip: float | None = None,
    groups: int = 1,
    colluders: int = 1,
    least_users: int | None = None,
    send: str = "change",
    sparsity: float | None = None,
    scale: NDArray[np.float64] | None = None,
    patience: float = 60.0,
) -> PlannedFederation:
    """Make the plan of a federation.

    Parameters:
        sites: number of sites that contribute.
        method: "statistics": one round of summed feature statistics, with epsilon per record;
            "gradients": rounds of records' clipped gradients, with epsilon per record; "updates":
            each site trains, and the changes are averaged. By default gradients with epsilon per
            record, else updates.
        holders: number of key holders; by default up to 20 of the sites.
        names: the names of the classes, to which sites match their labels.
        classes: without names and public rows: number of classes, which are numbered from 0.
        features: without an encoder and public rows: number of features of a row.
        public: public labelled rows, from which the scale of the features, the first model and, if
            they are not given, the classes are computed.
        encoder: the encoder of photos; None if the sites have rows.
        rounds: number of rounds; by default 3, and 30 with epsilon per record.
        epsilon: privacy budget over all rounds; None for exact sums.
        delta: delta of the guarantee, with epsilon.
        unit: "record" (epsilon per photo) or "site" (all photos of a site together, needs many
            sites).
        records: approximate number of records of the largest site, which is public. Sites are
            weighted by their number of records, up to this number.
        holdout: share of each site's records on which the last model is tested by a secure sum.
        learner: without noise per record: "proximal" or "sgd".
        strength: strength of the learner's elastic net.
        clip: the largest norm of a site's update; with epsilon per record, of a record's gradient.
        groups: an odd number of groups of sites, whose means' median moves the model, which limits
            the effect of malicious sites; all sites then have the same weight.
        colluders: number of sites that may collude with the aggregator.
        least_users: the smallest number of contributors of a round.
        send: what a site sends: "change" or "mask".
        sparsity: share of zeros, for "mask".
        scale: mean and deviation of the features, if they are known from elsewhere.
        patience: seconds without a new site after which a round ends.

    Raises:
        InvalidParameter: the shape of the model is not known, or options exclude each other.

    Examples:
        >>> planned = plan_federation(sites=5, names=["cat", "dog"], features=8, epsilon=2.0)
        >>> planned.plan.names, planned.guarantee.unit, planned.plan.rounds
        (('cat', 'dog'), 'record', 30)
    """
    from blindsight.federated.agreement import agree
    from blindsight.federated.deploy.plan import Plan, class_numbers
    from blindsight.federated.learning import RecordDescent, initial_weights, linear

    checks.one_of("unit", unit, ("record", "site"))
    descent = epsilon is not None and unit == "record"
    if method is not None:
        checks.one_of("method", method, METHODS)
        if (method == "updates") == descent:
            raise InvalidParameter(
                "methods 'statistics' and 'gradients' need epsilon per record, and 'updates' has "
                "none."
            )
    chosen = tuple(sorted({str(name).strip() for name in names}))
    if not chosen and public is not None:
        chosen = public.names
    if chosen:
        count = len(chosen)
    elif public is not None:
        count = int(public.labels.max()) + 1
    elif classes is not None:
        count = checks.whole("classes", classes, least=2)
    else:
        raise InvalidParameter(
            "give the classes (--classes 'cat, dog', or their number with --features), or public "
            "photos or rows (--public)."
        )
    opened, identity = load_plan_encoder(encoder)
    if method == "statistics" and epsilon is not None:
        from blindsight.app.together_statistics import plan_statistics
        from blindsight.sketching.statistics_rules import forecast

        agreement, summed = plan_statistics(
            sites=sites, names=chosen or [str(number) for number in range(count)],
            epsilon=epsilon, public=public, encoder=opened, features=features, delta=delta,
            records=records, holders=holders, colluders=colluders, least_users=least_users,
            holdout=holdout, patience=patience, encoder_identity=identity,
        )  # fmt: skip
        expected = forecast(records * sites, count, epsilon=epsilon, delta=delta)
        advice = None
        if expected.refused:
            advice = (
                f"{sites} sites of {records:,} photos are too few for {count} classes at this "
                f"epsilon: about {expected.needed:,} photos of all sites together are needed."
            )
        settings = _pad_settings(agreement)
        return PlannedFederation(settings, summed, agreement.guarantee(1), advice)
    if scale is None:
        scale = _scale(public, opened, features)
    width = scale.shape[1]
    start = np.zeros(linear.rows_of(count) * (width + 1))
    if public is not None and not descent:
        numbers = class_numbers(public.labels, chosen)
        start = initial_weights((public.X - scale[0]) / scale[1], numbers, classes=count)
    # The median of groups' means limits the effect of a site only if sites have equal weights.
    weighted = epsilon is None and send == "change" and groups == 1
    default = ROUNDS["gradients" if descent else "updates"]
    options: dict[str, Any] = {"strength": strength}
    if descent:
        learner, options = "records", {} if clip is None else {"clip": clip}
    plan = Plan(
        initial=start,
        scale=scale,
        classes=count,
        rounds=default if rounds is None else rounds,
        learner=learner,
        options=options,
        send=send,
        sparsity=sparsity,
        mask_seed=secrets.randbits(62),
        patience=patience,
        names=chosen,
        encoder=identity,
        holdout=holdout,
        examples=records if weighted else 0,
    )
    norm = clip
    if descent:
        norm = RecordDescent(**options).record_norm
    elif weighted and clip is not None:
        norm = float(np.hypot(clip, 1.0))  # the weight is summed beside the update
    agreement = agree(
        dimension=plan.dimension,
        users=sites,
        holders=holders,
        rounds=plan.rounds,
        epsilon=epsilon,
        delta=delta,
        clip=norm,
        least_users=least_users,
        colluders=colluders,
        groups=groups,
        records=records if descent else None,
        contributions=plan.total_rounds,
    )
    settings = _pad_settings(agreement)
    plan.check(settings)
    return PlannedFederation(settings, plan, agreement.guarantee(plan.rounds), agreement.advice())


def _pad_settings(agreement: Agreement) -> Settings:
    """Return the settings, which are never those of the paper's protocol here."""
    from blindsight.federated.sums import Settings

    assert isinstance(agreement.settings, Settings)  # noqa: S101
    return agreement.settings


def load_plan_encoder(
    encoder: PathText | Encoder | None,
) -> tuple[Encoder | None, dict[str, Any]]:
    """Open an encoder, and return it with its fields in a plan, which contain no local path."""
    from blindsight.encoders import BUILT_IN, open_encoder

    if encoder is None:
        return None, {}
    opened = open_encoder(encoder)
    name = encoder if isinstance(encoder, str) and encoder.startswith("hub:") else opened.name
    name = next((short for short, built_in in BUILT_IN.items() if built_in == opened), name)
    return opened, {"open": name, "identity": dict(opened.identity())}


def _scale(
    public: LabelledRows | None, encoder: Encoder | None, features: int | None
) -> NDArray[np.float64]:
    """Return mean and deviation of the features, from public data."""
    if public is not None:
        X = public.X
    elif encoder is not None:
        from blindsight.encoders import Embeddings
        from blindsight.encoders.public_pictures import built_in_vectors

        if isinstance(encoder, Embeddings):
            raise InvalidParameter(f"{encoder.name}: give public rows of the same model, public=.")
        side = encoder.prepare(np.zeros((8, 8, 3), np.uint8)).shape[0]
        X = built_in_vectors(encoder, _PUBLIC_PICTURES, side).astype(np.float64)
    elif features is not None:
        width = checks.whole("features", features)
        return np.vstack([np.zeros(width), np.ones(width)])
    else:
        raise InvalidParameter(
            "give --public rows.npz or --encoder lite0, or both --features and --classes."
        )
    deviation = X.std(axis=0)
    # One deviation for all features: few pictures give poor estimates for single features.
    spread = np.where(deviation > 1e-9, deviation, 1.0)
    if encoder is not None:
        spread = np.full(X.shape[1], max(float(np.sqrt((deviation**2).mean())), 1e-9))
    return np.vstack([X.mean(axis=0), spread])


@dataclass(frozen=True)
class TrainedTogether(JobResult):
    """The result of `train_together`.

    Attributes:
        classes: the names of the classes.
        sites: number of sites.
        records: number of records of all sites.
        rounds: for each round its number, sites in the sum, bytes that a site sent, and seconds.
        accuracy: accuracy on the held-out records of all sites (with noise an estimate), or None.
        guarantee: the guarantee of the sums.
        advice: what to change if noise hides the result, or None.
        model: the file of the model, or None.
        classifier: the model itself.
        files: number of photos that were read, and the files that were not, by kind.

    Examples:
        >>> plan = plan_federation(sites=3, names=["cat", "dog"], features=8, epsilon=2.0)
        >>> TrainedTogether(("cat", "dog"), 3, 90, (), 0.9, plan.guarantee).title
        'A classifier of 2 classes, learned by 3 sites'
    """

    classes: tuple[str, ...]
    sites: int
    records: int
    rounds: tuple[dict[str, float], ...]
    accuracy: float | None
    guarantee: Guarantee
    advice: str | None = None
    model: Path | None = None
    classifier: Any = field(default=None, repr=False, compare=False)
    files: FilesRead | None = None

    @property
    def title(self) -> str:
        return f"A classifier of {len(self.classes)} classes, learned by {self.sites} sites"

    def facts(self) -> list[tuple[str, str]]:
        held_out = "nothing was held out" if self.accuracy is None else f"{self.accuracy:.1%}"
        facts = [
            ("records", f"{self.records:,}"),
            ("accuracy on the held-out records of all sites", held_out),
            ("guarantee", self.guarantee.line()),
        ]
        if self.model is not None:
            facts.append(("model", str(self.model)))
        return facts if self.advice is None else [*facts, ("note", self.advice)]

    def tables(self) -> list[ResultTable]:
        columns = ("round", "sites", "bytes per site", "seconds")
        rows = [
            (f"{r['round']:.0f}", f"{r['sites']:.0f}", f"{r['bytes']:,.0f}", f"{r['seconds']:.2f}")
            for r in self.rounds
        ]
        files = [] if self.files is None else [files_table(self.files)]
        return [ResultTable("rounds", columns, rows), *files]

    def to_dict(self) -> dict[str, object]:
        """Return the fields without the model itself."""
        return JobResult.to_dict(replace(self, classifier=None))


def train_together(
    data: PathText | Sequence[PathText],
    *,
    sites: int = 5,
    method: str | None = None,
    labels: PathText | Sequence[PathText] | None = None,
    public: PathText | None = None,
    encoder: PathText | Encoder | None = None,
    names: Sequence[str] = (),
    epsilon: float | None = None,
    delta: float = 1e-5,
    rounds: int | None = None,
    holdout: float = 0.2,
    records: int | None = None,
    least_users: int | None = None,
    encrypt: bool = True,
    out: PathText | None = None,
    ledger: Any = None,
    progress: Progress = no_progress,
) -> TrainedTogether:
    """Train one classifier over several sites, which are all simulated in this process.

    The sums are computed by the code that runs across machines (`blindsight federate`), so this
    shows the accuracy and cost of a federation before any site joins it.

    Parameters:
        data: one folder of photos (or .npz file of rows) for each site; or a single one, whose
            records are divided among `sites` sites.
        sites: number of sites among which a single folder is divided.
        method: "statistics": one round of summed feature statistics, for photo folders with
            epsilon; "gradients": rounds of records' clipped gradients, with epsilon per record;
            "updates": each site trains, the changes are averaged; no epsilon. By default
            statistics for photos with epsilon, gradients for rows with epsilon, and else updates.
        labels: the labels of a folder, see `read_labelled`; one, or one for each site.
        public: a public folder or file.
        encoder: the encoder of photos, see `open_encoder`; a file of vectors has the photos' names
            as ids. By default "lite0-224" for statistics, else "lite0".
        names: the names of the classes; by default those of the public data, else those of all
            sites, which become public.
        epsilon: epsilon per record over all rounds; None for exact sums.
        delta: delta of the guarantee, with epsilon.
        rounds: number of rounds; by default 3 for updates and 30 for gradients.
        holdout: share of each site's records on which the model is tested by a secure sum.
        records: approximate number of records of the largest site (public; default: the exact one).
        least_users: fewest contributors of a sum; by default two thirds of the sites with epsilon.
        encrypt: False computes the same numbers without cryptography.
        out: the file of the model, if it is to be saved.
        ledger: a `Ledger` that is charged before the first round.
        progress: called with (stage, done, total).

    Raises:
        InvalidParameter: there are fewer than three sites, or options exclude each other.
        InvalidData: a site's labels are none of the classes.

    Examples:
        >>> import tempfile
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> rows = Path(tempfile.mkdtemp()) / "rows.npz"
        >>> np.savez(rows, X=X, y=y.astype(str))
        >>> trained = train_together(rows, sites=3, encrypt=False)
        >>> trained.sites, trained.accuracy > 0.85, trained.guarantee.epsilon
        (3, True, inf)
    """
    single = isinstance(data, str | Path)
    paths = [Path(data)] if single else [Path(path) for path in data]  # type: ignore[arg-type, union-attr]
    photos = paths[0].is_dir()
    if method is None:
        method = "updates" if epsilon is None else "statistics" if photos else "gradients"
    checks.one_of("method", method, METHODS)
    if (method == "updates") != (epsilon is None):
        raise InvalidParameter(
            "methods 'statistics' and 'gradients' need epsilon=, and 'updates' has none here."
        )
    from blindsight.encoders import open_encoder

    usual = federated_encoder(method)
    chosen = open_encoder(usual if encoder is None else encoder) if photos else None
    tables = [labels] * len(paths) if labels is None or isinstance(labels, str | Path) else labels
    site_rows = [
        read_labelled(path, labels=table, encoder=chosen, progress=progress)
        for path, table in zip(paths, tables, strict=True)
    ]
    files = _added(site_rows)
    if single:
        site_rows = _dealt(site_rows[0], checks.whole("sites", sites, least=3))
    public_rows = (
        None if public is None else read_labelled(public, encoder=chosen, progress=progress)
    )
    if not names:
        names = (
            public_rows.names
            if public_rows is not None
            else sorted({n for g in site_rows for n in g.names})
        )
    most = max(len(site.X) for site in site_rows) if records is None else records
    planned = plan_federation(
        sites=len(site_rows),
        method=method,
        names=names,
        classes=max(int(site.labels.max()) + 1 for site in site_rows) if not names else None,
        features=site_rows[0].X.shape[1],
        public=public_rows,
        encoder=chosen,
        rounds=rounds,
        epsilon=epsilon,
        delta=delta,
        records=most,
        holdout=holdout,
        least_users=least_users,
    )
    if ledger is not None:
        from blindsight.privacy.door import Door

        Door(planned.guarantee, what="training together", ledger=ledger)
    trained = _trained(planned, site_rows, encrypt=encrypt, out=out, progress=progress)
    return replace(trained, files=files)


def _added(sites: Sequence[LabelledRows]) -> FilesRead | None:
    """Add up the tables of files of all sites; None if all sites have rows."""
    files = [site.files for site in sites if site.files is not None]
    return functools.reduce(operator.add, files) if files else None


def _dealt(rows: LabelledRows, sites: int) -> list[LabelledRows]:
    """Divide the records of one folder among several sites, shuffled with a fixed seed."""
    order = np.random.default_rng(0).permutation(len(rows.X))
    return [
        LabelledRows(rows.X[order[n::sites]], rows.labels[order[n::sites]]) for n in range(sites)
    ]


def _trained(
    planned: PlannedFederation,
    sites: Sequence[LabelledRows],
    *,
    encrypt: bool,
    out: PathText | None,
    progress: Progress,
) -> TrainedTogether:
    from blindsight.federated.deploy.plan import class_numbers
    from blindsight.federated.learning import model_digest
    from blindsight.federated.sums import Simulation

    plan, settings = planned.plan, planned.settings
    tasks = {
        number: plan.task(site.X, class_numbers(site.labels, plan.names), user=number)
        for number, site in enumerate(sites, start=1)
    }
    simulation = Simulation(settings, encrypt=encrypt, keep_messages=False)
    weights, accuracy, rounds = plan.initial.copy(), None, []
    for turn in range(1, plan.total_rounds + 1):
        digest, length = model_digest(weights), plan.length(turn)
        used = np.zeros(settings.dimension, dtype=bool)
        used[:length] = True
        vectors = {}
        for number, task in tasks.items():
            vector = np.zeros(settings.dimension)
            vector[:length] = task.vector(weights, turn, settings)
            vectors[number] = vector
        simulation.expect(digest)
        result = simulation.round(vectors, model=digest, only=None if used.all() else used)
        users, mean = len(result.contributors), result.mean[used]
        weights = plan.advanced(weights, mean, users=users, turn=turn)
        if plan.evaluates(turn):
            accuracy = plan.evaluation(mean)
        sent = float(np.mean([*result.bytes_per_user.values()]))
        rounds.append(
            {
                "round": turn,
                "sites": users,
                "bytes": sent,
                "seconds": result.seconds["total"],
            }
        )
        progress("rounds", turn, plan.total_rounds)
    model = plan.learned(weights, settings)
    if out is not None and model is not None:
        share_file(Path(out), "federated model", planned.guarantee, save=model.save)
    return TrainedTogether(
        classes=plan.names or tuple(map(str, range(plan.classes))),
        sites=len(sites),
        records=sum(len(site.X) for site in sites),
        rounds=tuple(rounds),
        accuracy=accuracy,
        guarantee=planned.guarantee,
        advice=planned.advice,
        model=None if out is None else Path(out),
        classifier=model,
    )


def simulate_federation(
    data: PathText | None = None,
    *,
    users: int = 5,
    rounds: int = 3,
    send: str = "change",
    sparsity: float | None = None,
    mode: str = "pad",
    epsilon: float | None = None,
    encrypt: bool = True,
    out: PathText | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> FederatedClassifier:
    """Train a `FederatedClassifier` on one set of rows: a tenth is public, a fifth is for the test.

    This compares what users send and runs the paper's protocol, with noise per user. Use
    `train_together` for photos, class names, sites of different sizes and noise per record.

    Parameters:
        data: rows (.npz with X and class numbers y); by default scikit-learn's digits.
        users: number of users among which the other rows are divided.
        rounds: number of rounds.
        send: what a user sends: "change", "weights", "top-k" or "mask".
        sparsity: share of zeros, for "weights", "top-k" and "mask".
        mode: "pad", or "paper" for Algorithm 1.
        epsilon: epsilon per user over all rounds; None for exact sums.
        encrypt: False computes the same numbers without cryptography.
        out: the file of the model, if it is to be saved.
        seed: the seed of the split.
        progress: called with (stage, done, total).
    """
    from sklearn.datasets import load_digits

    from blindsight.federated import FederatedClassifier, Pad, Paper, SumNoise
    from blindsight.federated.deploy.plan import read_rows
    from blindsight.federated.learning.federation import from_name

    X, y = load_digits(return_X_y=True) if data is None else read_rows(data)
    order = np.random.default_rng(seed).permutation(len(X))
    public, test, private = np.split(order, [len(X) // 10, len(X) // 10 + len(X) // 5])
    model = FederatedClassifier(
        # With noise the classes must be public.
        classes=None if epsilon is None else np.unique(y[public]),
        users=users,
        rounds=rounds,
        send=from_name(send, sparsity=sparsity),
        sums=Paper() if checks.one_of("mode", mode, ("pad", "paper")) == "paper" else Pad(),
        noise=None if epsilon is None else SumNoise(epsilon=epsilon),
        encrypt=encrypt,
    )
    model.fit(
        X[private],
        y[private],
        public=(X[public], y[public]),
        test=(X[test], y[test]),
        progress=lambda done, total: progress("rounds", done, total),
    )
    if out is not None:
        share_file(Path(out), "federated model", model.guarantee_, save=model.save)
    return model

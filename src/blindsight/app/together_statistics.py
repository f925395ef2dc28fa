"""One round may be enough: sites sum feature statistics, with the noise added once.

Each site turns its photos into rows by public means, adds up class sums, counts and second moments
(`blindsight.sketching.statistics`), and contributes the vector to one secure sum with shares of
noise. Everybody fits the same classifier from the noisy sum. There is nothing to tune.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app.result import Progress, no_progress
from blindsight.app.train_together import LabelledRows, TrainedTogether
from blindsight.core.errors import InvalidParameter

if TYPE_CHECKING:
    from blindsight.federated.agreement import Agreement
    from blindsight.federated.sums.simulation import RoundResult, Simulation
    from blindsight.sketching import FeatureBasis, Statistics, StatisticsLayout

__all__ = ["agree_on_statistics", "sum_statistics", "train_by_statistics"]

_EVALUATION_LENGTH = 2


def agree_on_statistics(
    layout: StatisticsLayout,
    *,
    sites: int,
    epsilon: float,
    delta: float = 1e-5,
    records: int = 10_000,
    least_users: int | None = None,
) -> Agreement:
    """The settings of one sum of statistics, and of one evaluation of what is learned from it.

    Parameters:
        layout: what is summed.
        sites: how many sites there are.
        epsilon: per record, add or remove one.
        delta: of the guarantee.
        records: about how many records the largest site has; public.
        least_users: fewest contributors; the fewer they may be, the more noise each adds.
    """
    from blindsight.federated.agreement import agree

    return agree(
        dimension=layout.size,
        users=sites,
        rounds=1,
        epsilon=epsilon,
        delta=delta,
        clip=layout.bound(),
        records=records,
        least_users=least_users,
        contributions=2,  # a record trains or is held out, never both
    )


def sum_statistics(
    simulation: Simulation,
    sums: Mapping[int, NDArray[np.float64]],
    layout: StatisticsLayout,
    basis: FeatureBasis,
) -> tuple[Statistics, RoundResult]:
    """One round of the secure sum over sites' statistics.

    Parameters:
        simulation: of the settings of `agree_on_statistics`.
        sums: each site's `layout.sum(...)`, by its number from 1.
        layout: what is summed.
        basis: how features became rows.

    Returns:
        The statistics with their noise, and the round.
    """
    from blindsight.privacy.mechanisms.convolved import width
    from blindsight.sketching import Statistics

    noise = simulation.settings.noise
    if noise is None:
        raise InvalidParameter("statistics are summed with noise: agree_on_statistics().")
    result = simulation.round(sums, model=basis.digest.encode())
    users = len(result.contributors)
    sigma = math.sqrt(users) * width(noise.levels) * noise.step  # every contributor adds a share
    statistics = Statistics.from_sum(result.total, layout, basis, sigma=sigma, senders=users)
    return statistics, result


def train_by_statistics(
    given: Sequence[LabelledRows],
    *,
    names: Sequence[str],
    public: LabelledRows | None,
    encoder: str | None,
    epsilon: float,
    delta: float,
    holdout: float,
    records: int,
    least_users: int | None = None,
    encrypt: bool = True,
    out: str | Path | None = None,
    ledger: Any = None,
    progress: Progress = no_progress,
) -> TrainedTogether:
    """Learn a classifier from one noisy sum of all sites' feature statistics.

    Parameters:
        given: each site's rows and labels.
        names: the classes.
        public: rows that anybody may see; without, built-in pictures and the encoder's own
            classifier give the directions.
        encoder: how photos became rows; None: rows were given.
        epsilon: per record.
        delta: of the guarantee.
        holdout: the share of each site's records on which the model is tested by a sum.
        records: about how many records the largest site has; public.
        least_users: fewest contributors of a sum.
        encrypt: False computes the same numbers without the cryptography.
        out: save the classifier here.
        ledger: charged before anything is summed.
        progress: told how far it is.
    """
    from blindsight.federated.deploy.plan import class_numbers, held_out_records
    from blindsight.federated.sums import Simulation
    from blindsight.privacy.door import Door
    from blindsight.sketching import StatisticsLayout, fit_from_statistics

    classes = tuple(sorted(map(str, names)))
    total = records * len(given)  # as the sites said: the true number is not public
    layout = StatisticsLayout.choose(classes, n_records=total, epsilon=epsilon, delta=delta)
    basis = _basis(given[0].X.shape[1], public, encoder, layout.width)
    layout = StatisticsLayout(classes, basis.width, layout.moments)
    agreement = agree_on_statistics(
        layout, sites=len(given), epsilon=epsilon, delta=delta, records=records,
        least_users=least_users,
    )  # fmt: skip
    guarantee, settings = agreement.guarantee(1), agreement.settings
    if ledger is not None:
        Door(guarantee, what="training together", ledger=ledger)
    sums, tests = {}, {}
    for number, site in enumerate(given, start=1):
        labels = class_numbers(site.labels, classes)
        held = held_out_records(site.X, labels, holdout)
        sums[number] = layout.sum(basis.rows(site.X[~held]), labels[~held])
        tests[number] = site.X[held], labels[held]
        progress("sites", number, len(given))
    simulation: Any = Simulation(settings, encrypt=encrypt, keep_messages=False)  # type: ignore[arg-type]
    statistics, result = sum_statistics(simulation, sums, layout, basis)
    model, rounds, accuracy = fit_from_statistics(statistics), [_logged(1, result)], None
    if holdout:
        unit = settings.noise.clip / math.sqrt(2) if settings.noise is not None else 1.0
        used = np.arange(layout.size) < _EVALUATION_LENGTH
        vectors = {}
        for number, (X, labels) in tests.items():
            right = model.predict(X) == np.array(classes)[labels] if len(X) else np.zeros(0)
            vectors[number] = np.where(used, 0.0, 0.0)
            vectors[number][:2] = float(right.sum()) * unit, float(len(X)) * unit
        result = simulation.round(vectors, model=b"evaluation", only=used)
        rounds.append(_logged(2, result))
        right_sum, count = result.total[used]
        accuracy = float(np.clip(right_sum / count, 0, 1)) if count > 0 else None
    if out is not None:
        model.save(out)
    return TrainedTogether(
        classes=classes,
        sites=len(given),
        records=sum(len(site.X) for site in given),
        rounds=tuple(rounds),
        accuracy=accuracy,
        guarantee=guarantee,
        model=None if out is None else Path(out),
        classifier=model,
    )


def _basis(
    features: int, public: LabelledRows | None, encoder: str | None, width: int
) -> FeatureBasis:
    from blindsight.app.labelled_images import public_basis
    from blindsight.encoders import open_encoder
    from blindsight.sketching import FeatureBasis

    if public is not None:
        return FeatureBasis.learn(public.X, width=width)
    if encoder is None:
        raise InvalidParameter(
            "statistics of rows need public rows, which give the directions: public=."
        )
    basis = public_basis(open_encoder(encoder), None, width)
    if basis.n_features != features:
        raise InvalidParameter(f"the encoder gives {basis.n_features} features, not {features}.")
    return basis


def _logged(number: int, result: RoundResult) -> dict[str, float]:
    return {
        "round": number,
        "sites": len(result.contributors),
        "bytes": float(np.mean([*result.bytes_per_user.values()])),
        "seconds": result.seconds["total"],
    }

"""Compare records by the plain distance or by a learned metric with a threshold and error rates,
and group records that are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blindsight.app.defaults import METRIC_NEIGHBOURS, PLAIN_DISTANCE, default_encoder, no_progress
from blindsight.app.result import JobResult, Progress, ResultTable, counted, files_table, to_plain
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.encoders import Encoder, open_encoder, open_same_encoder

if TYPE_CHECKING:
    from blindsight.data.listing import FilesRead
    from blindsight.metric import DPPMetric, OperatingPoint
    from blindsight.metric.files import Records

__all__ = [
    "MAX_CLUSTERED",
    "Clusters",
    "Comparison",
    "cluster",
    "compare",
    "errors_text",
    "read_records",
]

#: The largest number of records that are grouped, because all distances are held in memory.
MAX_CLUSTERED = 20_000


@dataclass(frozen=True)
class Comparison(JobResult):
    r"""Distances from one record to others, and whether they count as the same.

    Parameters:
        record: the id of the record.
        distances: ids and distances, the nearest first if several were listed.
        point: the threshold with its error rates; None if there is none.
        answers: for each distance an answer such as "same, wrong in about 5 of 100"; empty without
            a threshold.
        files: number of photos that were read, and the files that were not, by kind.

    Examples:
        >>> import tempfile
        >>> table = Path(tempfile.mkdtemp()) / "features.csv"
        >>> _ = table.write_text("id,x,y\na,1,0\nb,.6,.8\nc,0,1")
        >>> near = compare("plain", ["a"], features=table)
        >>> [(name, round(distance, 2)) for name, distance in near.distances]
        [('b', 0.89), ('c', 1.41)]
    """

    record: str
    distances: tuple[tuple[str, float], ...]
    point: OperatingPoint | None = None
    answers: tuple[str, ...] = ()
    files: FilesRead | None = None

    @property
    def title(self) -> str:
        return f"Distance from {self.record}"

    def facts(self) -> list[tuple[str, str]]:
        return [("errors", errors_text(self.point))]

    def tables(self) -> list[ResultTable]:
        answers = self.answers or ("",) * len(self.distances)
        rows = [
            (name, f"{distance:.4g}", answer)
            for (name, distance), answer in zip(self.distances, answers, strict=True)
        ]
        distances = ResultTable(self.title, ("record", "distance", "answer"), rows)
        return [distances] if self.files is None else [distances, files_table(self.files)]

    def to_dict(self) -> dict[str, object]:
        """The fields of `blindsight compare distance --json`."""
        answers = self.answers or (None,) * len(self.distances)
        listed = [
            {"to": name, "distance": distance, "answer": answer}
            for (name, distance), answer in zip(self.distances, answers, strict=True)
        ]
        return {
            "from": self.record,
            "distances": listed,
            "threshold": None if self.point is None else to_plain(self.point),
            "files": to_plain(self.files),
        }


@dataclass(frozen=True)
class Clusters(JobResult):
    """Groups of records that are the same. For the owner: as private as the records.

    Parameters:
        groups: the ids of each group, the largest group first.
        threshold: the mean distance up to which groups were joined; None if `n_clusters` was given.
        out: the file with a line for each record, if one was written.
        files: number of photos that were read, and the files that were not, by kind.
    """

    groups: tuple[tuple[str, ...], ...]
    threshold: float | None
    out: Path | None = None
    files: FilesRead | None = None

    @property
    def title(self) -> str:
        records = counted(sum(map(len, self.groups)), "record")
        return f"{records} in {counted(len(self.groups), 'group')}"

    def facts(self) -> list[tuple[str, str]]:
        sizes = ", ".join(f"{len(group):,}" for group in self.groups[:10])
        facts = [("largest groups", sizes)]
        if self.threshold is not None:
            facts.append(("threshold", f"mean distances up to {self.threshold:.4g} are joined"))
        if self.out is not None:
            facts.append(("groups", str(self.out)))
        return facts

    def tables(self) -> list[ResultTable]:
        return [] if self.files is None else [files_table(self.files)]

    def to_dict(self) -> dict[str, object]:
        """The fields of `blindsight compare clusters --json`."""
        return {
            "groups": [list(group) for group in self.groups],
            "threshold": self.threshold,
            "out": None if self.out is None else str(self.out),
            "files": to_plain(self.files),
        }


def compare(
    model: str | Path,
    ids: Sequence[str],
    *,
    features: str | Path | None = None,
    images: str | Path | None = None,
    encoder: str | Path | Encoder | None = None,
    nearest: int = METRIC_NEIGHBOURS,
    false_accept: float | None = None,
    false_reject: float | None = None,
    share_same: float = 0.5,
    progress: Progress = no_progress,
) -> Comparison:
    r"""Return the distance of two records, or the records nearest to one, and whether they match.

    Parameters:
        model: a file that `learn_metric` wrote; or "plain" for the Euclidean distance of the
            features, which is free and has no threshold.
        ids: two ids, or one to list its nearest records.
        features: CSV file of the records.
        images: a folder of images instead.
        encoder: the encoder that the metric was learned with, if it is not built in.
        nearest: number of records to list for a single id.
        false_accept: the largest share of different pairs that may be called the same.
        false_reject: the largest share of same pairs that may be called different. Without either,
            the threshold minimises the mean of both.
        share_same: prior probability that a pair is the same, on which the error of an answer
            depends.
        progress: called with (stage, done, total).

    Returns:
        The distances, with answers where the model has a threshold with error rates.

    Raises:
        InvalidParameter: if there are neither one nor two ids, the encoder is not the one that
            the metric was learned with, or noise hides a rate as small as requested.
        InvalidData: if an id is unknown.

    Examples:
        >>> import tempfile
        >>> table = Path(tempfile.mkdtemp()) / "features.csv"
        >>> _ = table.write_text("id,x,y\na,1,0\nb,.6,.8\nc,0,1")
        >>> pair = compare("plain", ["a", "c"], features=table)
        >>> print(f"{pair.distances[0][1]:.2f}", pair.point)
        1.41 None
    """
    if not 1 <= len(ids) <= 2:
        raise InvalidParameter(f"give two ids, or one to list its nearest records; got {len(ids)}.")
    records, mapped, metric = _mapped(model, features, images, encoder, progress)
    numbers = records.numbers(list(ids), where="the command line")
    away = np.linalg.norm(mapped - mapped[numbers[0]], axis=1)
    if len(ids) == 2:
        distances = [(ids[1], float(away[numbers[1]]))]
    else:
        order = [i for i in np.argsort(away, kind="stable") if i != numbers[0]][:nearest]
        distances = [(records.ids[i], float(away[i])) for i in order]
    point = _point(metric, false_accept, false_reject)
    answers = (
        ()
        if point is None
        else tuple(str(point.answer(far, share_same=share_same)) for _, far in distances)
    )
    return Comparison(ids[0], tuple(distances), point, answers, records.files)


def cluster(
    model: str | Path = PLAIN_DISTANCE,
    *,
    features: str | Path | None = None,
    images: str | Path | None = None,
    encoder: str | Path | Encoder | None = None,
    n_clusters: int | None = None,
    threshold: float | None = None,
    out: str | Path | None = None,
    progress: Progress = no_progress,
) -> Clusters:
    """Group records that are the same, by clustering with average linkage.

    The groups reveal which of the owner's records belong together, so they are as private as the
    records.

    Parameters:
        model: a file that `learn_metric` wrote, or "plain".
        features: CSV file of the records.
        images: a folder of images instead.
        encoder: the encoder that the metric was learned with, if it is not built in.
        n_clusters: number of groups; None joins groups up to the threshold.
        threshold: mean distance up to which groups are joined; by default that of the model.
        out: write the groups to this CSV file, with the columns "id" and "cluster".
        progress: called with (stage, done, total).

    Returns:
        The groups, the largest first.

    Raises:
        InvalidParameter: if there are too many records, or neither a threshold nor a number.

    Examples:
        >>> import tempfile
        >>> table = Path(tempfile.mkdtemp()) / "features.csv"
        >>> _ = table.write_text("id,x,y\\na,1,0\\nb,.9,.1\\nc,0,1\\nd,.1,.9")
        >>> cluster(features=table, n_clusters=2).groups
        (('a', 'b'), ('c', 'd'))
    """
    from sklearn.cluster import AgglomerativeClustering

    records, mapped, metric = _mapped(model, features, images, encoder, progress)
    if not 2 <= len(mapped) <= MAX_CLUSTERED:
        raise InvalidParameter(
            f"2 to {MAX_CLUSTERED:,} records can be grouped, got {len(mapped):,}."
        )
    limit = None
    if n_clusters is None:
        limit = threshold if threshold is not None else getattr(metric, "threshold_", None)
        if limit is None:
            raise InvalidParameter(
                "the plain distance has no threshold: give n_clusters or threshold, or a model of "
                "`learn_metric`."
            )
    numbers = AgglomerativeClustering(
        n_clusters=n_clusters, distance_threshold=limit, linkage="average"
    ).fit_predict(mapped)
    members: dict[int, list[str]] = {}
    for name, number in zip(records.ids, numbers.tolist(), strict=True):
        members.setdefault(number, []).append(name)
    groups = tuple(sorted(map(tuple, members.values()), key=lambda group: (-len(group), group)))
    path = None if out is None else Path(out)
    if path is not None:
        _write_groups(path, groups)
    return Clusters(groups, limit, path, records.files)


def read_records(
    features: str | Path | None,
    images: str | Path | None,
    *,
    encoder: Encoder | None = None,
    class_column: str | None = None,
    people: str | Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    progress: Progress = no_progress,
) -> Records:
    """Read records from a table or from a folder of images.

    Parameters:
        features: a CSV file; exactly one of this and `images` must be given.
        images: a folder of images.
        encoder: the encoder of images.
        class_column: the column of classes in the table.
        people: the person of each record: a column of the table; "folder", "dicom" or FILE:COLUMN
            for images; or a mapping from ids to names.
        columns: the names of the columns that the table must have.
        progress: called with (stage, done, total).
    """
    from dataclasses import replace

    from blindsight.metric.files import read_features, read_image_folder

    if (features is None) == (images is None):
        raise InvalidParameter(
            "say where the records are: either --features table.csv or --images folder."
        )
    if features is not None:
        if Path(features).suffix.lower() in {".npy", ".npz", ".parquet", ".pq"}:
            raise InvalidParameter(
                f"{features} is a file of vectors, and features= (--features) a table of text. "
                "Give it as encoder= (--encoder), with images= (--images) for the photos."
            )
        column = people if isinstance(people, str) else None
        records = read_features(
            features, class_column=class_column, person_column=column, columns=columns
        )
    else:
        assert images is not None and encoder is not None  # noqa: S101  (checked above)
        records = read_image_folder(
            images,
            encoder=encoder,
            progress=lambda done, total: progress("reading", done, total),
        )
        if isinstance(people, str):
            from blindsight.index.release_folder import persons_of

            people = persons_of(Path(images), records.ids, people)
    if people is None or isinstance(people, str):
        return records
    missing = [name for name in records.ids if not people.get(name)]
    if missing:
        raise InvalidData(
            f"{len(missing)} of {len(records.ids)} records have no person. Every record needs one."
        )
    return replace(records, people=np.array([people[name] for name in records.ids]))


def _write_groups(path: Path, groups: Sequence[Sequence[str]]) -> None:
    import csv
    import io

    from blindsight.core.storage import write_atomically

    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("id", "cluster"))
    writer.writerows((name, number) for number, group in enumerate(groups) for name in group)
    write_atomically(path, text.getvalue().encode("utf-8", "surrogateescape"))


def _mapped(
    model: str | Path,
    features: str | Path | None,
    images: str | Path | None,
    encoder: str | Path | Encoder | None,
    progress: Progress,
) -> tuple[Records, NDArray[np.float64], DPPMetric | None]:
    """Return records, and their points in the space of a model or of the plain distance."""
    from blindsight.metric import DPPMetric, EuclideanMetric

    if str(model) == PLAIN_DISTANCE:
        opened = None if images is None else open_encoder(encoder or default_encoder())
        records = read_records(features, images, encoder=opened, progress=progress)
        return records, EuclideanMetric().fit(records.X).transform(records.X), None
    metric = DPPMetric.load(model)
    opened = None
    if images is not None:
        opened = open_same_encoder(
            metric.about_.get("encoder"), encoder, what=f"the metric {model}"
        )
    columns = metric.about_.get("columns")
    records = read_records(features, images, encoder=opened, columns=columns, progress=progress)
    return records, metric.transform(records.X), metric


def _point(
    metric: DPPMetric | None, false_accept: float | None, false_reject: float | None
) -> OperatingPoint | None:
    if metric is None or not metric.curve_.known:
        if false_accept is not None or false_reject is not None:
            raise InvalidParameter(
                "there are no error rates to choose from: the plain distance has none without "
                "pairs, and a metric has none where noise hides them. Learn with pairs, a larger "
                "epsilon, or more pairs."
            )
        return None
    if false_accept is None and false_reject is None:
        return metric.curve_.at_threshold(metric.threshold_)
    return metric.curve_.at(false_accept=false_accept, false_reject=false_reject)


def errors_text(point: OperatingPoint | None) -> str:
    """Return the error rates of a threshold as text, or why they are not known."""
    if point is None:
        return (
            "not known: the plain distance has no threshold, and a metric has none if noise hides "
            "its error rates. Learn one from labelled pairs (blindsight compare learn), "
            "with more pairs or a larger epsilon."
        )
    return str(point)

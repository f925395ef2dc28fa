"""Tag photos, and publish the tags of private photos with noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blindsight.app.defaults import no_progress, open_ledger, open_vault
from blindsight.app.hosting import records_of
from blindsight.app.result import JobResult, Progress, ResultTable, counted, files_table, to_plain
from blindsight.core.errors import InvalidParameter, MissingData
from blindsight.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from blindsight.data.listing import FilesRead
    from blindsight.encoders import Encoder
    from blindsight.privacy.vault import Vault
    from blindsight.tagging import PrivateTagger
    from blindsight.tagging.photos import Extractor, ImageFiles

__all__ = ["ImageTags", "Tags", "publish_tags", "tag", "tag_format"]


@dataclass(frozen=True)
class ImageTags:
    """The tags of one image.

    Parameters:
        image: the path of the image as in a labels file, or its random id.
        tags: names of the tags, the most probable first.
        probabilities: the probability of each tag, in the same order.
    """

    image: str
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Tags(JobResult):
    """The tags of images.

    Parameters:
        images: the tags of each image.
        guarantee: the guarantee of the model, per training photo.
        answer_guarantee: the guarantee per tagged photo, if the tags were published with noise.
        unreadable: paths that were skipped, with the reason.
        charged: whether a ledger was charged for published tags.
        files: number of photos that were read, and the files that were not, by kind.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> from blindsight import start_tagger
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (64, 64), "red").save(folder / "red.png")
        >>> model = start_tagger("dog, beach", encoder="lite0", out=folder / "tagger").model
        >>> tags = tag(model, folder / "red.png")
        >>> len(tags.images), tags.guarantee.epsilon, tags.answer_guarantee
        (1, 0.0, None)
    """

    images: tuple[ImageTags, ...]
    guarantee: Guarantee
    answer_guarantee: Guarantee | None = None
    unreadable: tuple[tuple[Path, str], ...] = ()
    charged: bool = False
    files: FilesRead | None = None

    @property
    def title(self) -> str:
        return f"Tags of {counted(len(self.images), 'image')}"

    @property
    def price(self) -> str:
        """A sentence on the privacy cost of these tags."""
        if self.answer_guarantee is not None:
            return (
                f"Tags of each photo: ε = {self.answer_guarantee.epsilon:.4g} per photo, charged "
                "once; a photo that is tagged again has the same tags."
            )
        return f"These answers cost nothing more: the model itself is {self.guarantee.cost}."

    def save(self, out: str | Path, *, format: str | None = None) -> list[Path]:
        """Write the tags in a format that other programs read.

        Parameters:
            out: the file to write, or for "xmp" the folder for the sidecars.
            format: "csv", "json", "parquet", "xmp" or "label-studio"; by default by the suffix.

        Returns:
            The files that were written.
        """
        from blindsight.data.tag_files import TaggedImage, write_tags

        rows = [TaggedImage(item.image, item.tags, item.probabilities) for item in self.images]
        return write_tags(rows, out, format=format)

    def facts(self) -> list[tuple[str, str]]:
        skipped = [("skipped", f"{path}: {reason}") for path, reason in self.unreadable]
        return [("price", self.price), *skipped]

    def tables(self) -> list[ResultTable]:
        rows = [(item.image, ", ".join(item.tags) or "-") for item in self.images]
        tags = ResultTable("", ("image", "tags"), rows)
        return [tags] if self.files is None else [tags, files_table(self.files)]

    def to_dict(self) -> dict[str, object]:
        """The fields of `blindsight tag apply --json`."""
        answers = [
            {
                "image": item.image,
                "tags": list(item.tags),
                "scores": dict(zip(item.tags, item.probabilities, strict=True)),
            }
            for item in self.images
        ]
        per_photo = 0.0 if self.answer_guarantee is None else self.answer_guarantee.epsilon
        return {
            "answers": answers,
            "per_photo": per_photo,
            "record": self.guarantee.epsilon,
            "files": to_plain(self.files),
        }


def tag_format(out: str | Path, format: str | None = None) -> str:
    """Return the format in which `Tags.save` would write, so that it can be checked first.

    Parameters:
        out: the file to write.
        format: the format; by default by the suffix of the file.

    Raises:
        InvalidParameter: if the format is unknown, or neither given nor known by the suffix.

    Examples:
        >>> tag_format("tags.parquet")
        'parquet'
    """
    from blindsight.data.tag_files import format_of

    return format_of(out, format)


def tag(
    model: str | Path,
    images: str | Path | Iterable[str | Path],
    *,
    encoder: str | Path | Encoder | None = None,
    random_ids: bool = False,
    ledger: str | Path | None = None,
    dataset: str | None = None,
    vault: str | Path | None = None,
    actor: str | None = None,
    purpose: str = "",
    progress: Progress = no_progress,
) -> Tags:
    """Tag images with a tagger.

    Exact answers cost nothing in addition to training. For a tagger that was made with `publish=`
    this function calls `publish_tags`, which releases answers with noise.

    Parameters:
        model: a file that `train_tagger` or `start_tagger` wrote.
        images: an image, a folder of images, or several of them.
        encoder: the encoder that the tagger was trained with, if it is not built in.
        random_ids: as in `publish_tags`, like the options that follow; for published tags only.
        ledger: the ledger to charge.
        dataset: the account of the photos in the ledger.
        vault: the folder of the key of the noise.
        actor: the name of the person who asks for the release.
        purpose: the purpose, which the ledger stores.
        progress: called with (stage, done, total).

    Returns:
        The tags of each image, in the order of the paths.

    Raises:
        InvalidParameter: if an option for published tags is given for exact answers, or the
            encoder is not the one that the tagger was trained with.
        MissingData: if the model or an image does not exist.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> from blindsight import start_tagger
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (64, 64), "red").save(folder / "red.png")
        >>> model = start_tagger("dog, beach", encoder="lite0", out=folder / "tagger").model
        >>> tag(model, folder / "red.png").title
        'Tags of 1 image'
    """
    tagger, extractor = _load(Path(model), encoder)
    from blindsight.tagging.photos import image_files

    if tagger.answer_guarantee_ is not None:
        return publish_tags(
            model,
            images,
            encoder=encoder,
            random_ids=random_ids,
            ledger=ledger,
            dataset=dataset,
            vault=vault,
            actor=actor,
            purpose=purpose,
            progress=progress,
        )
    if random_ids or vault is not None:
        raise InvalidParameter(
            "this model gives exact answers: random_ids and vault are for a model that was made "
            "with publish=."
        )
    paths = _paths(images)
    listed = image_files(paths)
    files = listed.digests
    features = _features_of(listed, paths, extractor, progress)
    answers = tagger.answer(features(list(range(len(files)))))
    names = _names(list(files), paths)
    rows = tuple(
        _image_tags(tagger, name, tags, scores)
        for name, tags, scores in zip(names, answers.tags, answers.scores, strict=True)
    )
    return Tags(rows, tagger.guarantee_, None, listed.unreadable, files=listed.files)


def publish_tags(
    model: str | Path,
    images: str | Path | Iterable[str | Path],
    *,
    encoder: str | Path | Encoder | None = None,
    random_ids: bool = False,
    ledger: str | Path | None = None,
    dataset: str | None = None,
    vault: str | Path | None = None,
    actor: str | None = None,
    purpose: str = "",
    progress: Progress = no_progress,
) -> Tags:
    """Release the tags of private photos with noise, once per photo.

    A photo always has the same published tags, also if it was moved, renamed or copied, because its
    noise is derived from the vault's key. All photos of one model are charged once.

    Parameters:
        model: a file that `train_tagger(publish=...)` wrote.
        images: a photo, a folder of photos, or several of them.
        encoder: the encoder that the tagger was trained with, if it is not built in.
        random_ids: name photos by random ids and sort them by these, for sharing.
        ledger: the ledger to charge; by default the one that was charged before.
        dataset: the account of the photos; by default the name of the model.
        vault: the folder of the key of the noise; by default the one beside the model, which must
            exist.
        actor: the name of the person who asks for it (default: the operating system's user).
        purpose: the purpose, which the ledger stores.
        progress: called with (stage, done, total).

    Returns:
        The published tags of each photo.

    Raises:
        BudgetExceeded: if the remaining budget is too small; nothing is released.
        InvalidParameter: if the answers of this model are exact.
        MissingData: if the model, the vault or a photo does not exist.

    Examples:
        >>> import tempfile
        >>> from blindsight import start_tagger
        >>> exact = start_tagger("dog, beach", encoder="lite0", out=f"{tempfile.mkdtemp()}/tagger")
        >>> try:
        ...     publish_tags(exact.model, "photos")
        ... except InvalidParameter as refused:
        ...     print(str(refused).partition(": ")[2])
        make a model with train_tagger(publish=...).
    """
    from blindsight.tagging.photos import image_files, publish

    model_path = Path(model)
    tagger, extractor = _load(model_path, encoder)
    if tagger.answer_guarantee_ is None:
        raise InvalidParameter(
            f"the answers of {model_path} are exact and not protected: make a model with "
            "train_tagger(publish=...)."
        )
    paths = _paths(images)
    listed = image_files(paths)
    files = listed.digests
    opened_vault = _existing_vault(vault, model_path)
    records = records_of(opened_vault, files, listed.decoded)
    features = _features_of(listed, paths, extractor, progress)
    account = open_ledger(
        ledger, dataset or model_path.stem, opened_vault, actor=actor, purpose=purpose
    )
    answers = publish(
        tagger,
        records,
        features,
        vault=opened_vault,
        ledger=account,
        out=model_path.with_name(model_path.name + ".tags"),
    )
    names = records if random_ids else _names(list(files), paths)
    rows = [
        _image_tags(tagger, name, tags, scores)
        for name, tags, scores in zip(names, answers.tags, answers.scores, strict=True)
    ]
    if random_ids:  # one row per distinct photo, in an order that reveals nothing about the files
        rows = sorted({row.image: row for row in rows}.values(), key=lambda row: row.image)
    return Tags(
        tuple(rows),
        tagger.guarantee_,
        tagger.answer_guarantee_,
        listed.unreadable,
        charged=account is not None,
        files=listed.files,
    )


def _load(model: Path, encoder: str | Path | Encoder | None) -> tuple[PrivateTagger, Extractor]:
    from blindsight.tagging import PrivateTagger
    from blindsight.tagging.photos import Extractor

    if not model.exists():
        raise MissingData(
            f"there is no tagger at {model}. Make one with `tag train` or `tag start`."
        )
    tagger = PrivateTagger.load(model)
    return tagger, Extractor.of(tagger, encoder, what=f"the tagger {model}")


def _paths(images: str | Path | Iterable[str | Path]) -> list[Path]:
    if isinstance(images, (str, Path)):
        return [Path(images)]
    return [Path(item) for item in images]


def _features_of(
    listed: ImageFiles, paths: list[Path], extractor: Extractor, progress: Progress
) -> Callable[[list[int]], NDArray[np.float32]]:
    """Return a function from row numbers of the files to the features of these files."""
    from blindsight.data import Files

    files = list(listed.digests)
    names = _names(files, paths)

    def features(rows: list[int]) -> NDArray[np.float32]:
        return extractor(
            Files([files[row] for row in rows], decoded=listed.decoded),
            names=[names[row] for row in rows],
            progress=lambda done, total: progress("features", done, total),
        )

    return features


def _names(files: Sequence[Path], paths: Sequence[Path]) -> list[str]:
    """Return the names of files: relative to the folder if one folder is given, as in labels."""
    root = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    return [path.relative_to(root).as_posix() if root else str(path) for path in files]


def _image_tags(
    tagger: PrivateTagger, name: str, tags: NDArray[np.bool_], scores: NDArray[np.float64]
) -> ImageTags:
    order = [int(i) for i in scores.argsort()[::-1] if tags[i]]
    chances = tagger.answer_mechanism_.probabilities(scores)
    return ImageTags(
        name,
        tuple(str(tagger.classes_[i]) for i in order),
        tuple(round(float(chances[i]), 4) for i in order),
    )


def _existing_vault(path: str | Path | None, model: Path) -> Vault:
    """Open the vault of earlier answers.

    A new vault is created only at a path that the caller names: with another key, a photo that was
    published before would get a second answer with new noise.
    """
    from blindsight.index.release_folder import vault_beside

    if path is None and not vault_beside(model).exists():
        raise MissingData(
            f"there is no vault at {vault_beside(model)}. Name the existing vault with --vault, so "
            "that photos published before keep their tags; or name a new folder, if this model "
            "never published your photos."
        )
    return open_vault(path, model)

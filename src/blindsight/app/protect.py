"""Protect a folder of photos, or vectors computed from photos: release one noisy code for each into
a folder that can be shared.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.app import defaults
from blindsight.app.defaults import no_progress, open_ledger
from blindsight.app.result import JobResult, Progress, ResultTable, files_table, to_plain
from blindsight.codebooks import CellUse, even_use, predict_use
from blindsight.core import checks
from blindsight.core.errors import (
    BudgetExceeded,
    InvalidData,
    InvalidParameter,
    NotProven,
    RolledBack,
    UnitMismatch,
)
from blindsight.data.listing import FilesRead, Inventory, list_photos, no_photos
from blindsight.encoders import (
    BUILT_IN,
    STORED,
    BuiltIn,
    Embeddings,
    Encoder,
    OnnxEncoder,
    open_encoder,
)
from blindsight.encoders.embeddings import RowSource
from blindsight.index import encoder as photo_encoder
from blindsight.index.bulk import pool_at
from blindsight.index.contact_sheet import sync_thumbnails
from blindsight.index.encoder import CodeRecipe, PhotoEncoder
from blindsight.index.hamming import HammingIndex
from blindsight.index.public_images import is_vector_file, refuse_private
from blindsight.index.release_folder import (
    PreparedPhotos,
    ReleaseFolder,
    SyncResult,
    encoder_in_vault,
    folder_guarantee,
    mechanism_id,
    open_vault,
    persons_of,
    scan,
    sync_release,
    unused_path,
    vault_beside,
)
from blindsight.index.vector_rows import VectorRows, refuse_private_vectors, scan_vectors
from blindsight.privacy import Guarantee
from blindsight.privacy.reconcile import ReleaseOnDisk
from blindsight.privacy.vault import Vault
from blindsight.release.contents import refuse_foreign_files, share_release

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = ["ProtectedPhotos", "protect"]

_VECTORS = "vectors.npy"  # the copy in the vault that a run releases from; removed at its end
PathText = str | PathLike[str]
Names = Literal["random", "keep"]


@dataclass(frozen=True)
class ProtectedPhotos(JobResult):
    """What `protect` did.

    Parameters:
        release: the folder to share.
        vault: the folder to keep private: the key of the noise, and the photos' names.
        counts: how many images were released, were there before, could not be read, and so on.
        charged: what was charged to which data set, as a sentence without its full stop.
        recipe: how the photos became codes.
        guarantee: what is promised for each photo, and for each person where people are protected.
        names: "random" ids, or "keep" for the photos' own names.
        max_per_person: the most images of one person; 0 where people are not protected.
        created: whether the release is new, rather than continued.
        release_id: the release's id, under which vault and ledger know it.
        files: how many photos were read, and every file that was not, by kind.
        expected: how many hits were expected before anything was charged, for the owner only after
            `check_first`; None for a release that is continued, and for phashing codes.
        fingerprint: what the receiver compares, to know that the folder is the owner's.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (64, 64), "red").save(folder / "red.png")
        >>> protect(folder, f"{folder}.release", encoder="pixels").charged
        'not charged: no ledger was given'
    """

    release: Path
    vault: Path
    counts: SyncResult
    charged: str
    recipe: CodeRecipe
    guarantee: Guarantee
    names: Names
    max_per_person: int
    created: bool
    files: FilesRead
    release_id: str = ""
    expected: CellUse | None = None
    fingerprint: str = ""

    @property
    def title(self) -> str:
        return f"Protected {'vectors' if self.recipe.of_vectors else 'photos'} in {self.release}"

    def facts(self) -> list[tuple[str, str]]:
        counts = self.counts
        return [
            ("released now", f"{counts.released:,}"),
            ("there already", f"{counts.known:,}"),
            ("could not be read", f"{len(counts.refused):,}"),
            ("codes in the release", f"{counts.stored:,}"),
            ("guarantee", self.guarantee.line()),
            ("ledger", self.charged),
            ("share", str(self.release)),
            ("fingerprint", f"{self.fingerprint} (tell it to the receiver)"),
            ("keep private", str(self.vault)),
        ]

    def tables(self) -> list[ResultTable]:
        return [] if self.recipe.of_vectors else [files_table(self.files)]

    def sentences(self) -> list[str]:
        """Return what was done as sentences, for a terminal."""
        counts, noun = self.counts, "vectors" if self.recipe.of_vectors else "images"
        lines = [] if self.expected is None else [f"Expected: {self.expected.line()}"]
        lines.append(
            f"{counts.released} {noun} released, {counts.known} were there already, "
            f"{len(counts.refused)} could not be read."
        )
        if counts.copies:
            lines.append(f"Copies that share the code of another one: {counts.copies}.")
        if counts.left_out:
            lines.append(
                f"{counts.left_out} {noun} were left out: their person has {self.max_per_person} "
                "released already."
            )
        if counts.pruned:
            lines.append(f"{counts.pruned} codes were taken out.")
        if counts.vanished:
            lines.append(f"{counts.vanished} codes are of {noun} that are gone: --prune them.")
        if self.recipe.features.startswith("pixels") and defaults.default_encoder().startswith(
            "pixels"
        ):
            lines.append(
                "Photos are compared by their pixels: pip install 'blindsight[encoders]' finds "
                "what they show."
            )
        lines.append(f"Ledger: {self.charged}.")
        named = f", with the {noun}' names" if self.names == "keep" else ""
        lines.append(f"Share: {self.release} ({counts.stored} codes{named}).")
        lines.append(f"Tell the receiver its fingerprint: {self.fingerprint}.")
        lines.append(f"Keep private: {self.vault} (the key behind the noise, and the names).")
        return lines

    def short_card(self) -> str:
        """Return the privacy card in four lines; `guarantee.card()` is the whole of it."""
        promise = self.guarantee
        noun = "vector" if self.recipe.of_vectors else "photo"
        unit = noun if promise.unit == "record" else promise.unit
        people = f", and at most {self.max_per_person} per person" if self.max_per_person else ""
        proven = "proven" if not promise.unproven else "not proven"
        content = "no vectors, no names" if noun == "vector" else "no pixels, no file names"
        content = f"and the {noun}s' names" if self.names == "keep" else content
        seed = "; a simulation, because the seed is fixed" if promise.simulation else ""
        persons = [cost for cost in promise.also if cost.unit == "person"]
        odds = f"odds change by at most e^{promise.epsilon:g}"
        odds += f"; {persons[0]}" if persons else ""
        return "\n".join(
            [
                f"Privacy card ({proven}{seed}; --card prints the whole of it)",
                f"  released       one noisy code per {noun}{people}; {content}",
                f"  promise        {promise.cost}: {odds}",
                f"  not protected  that a {unit} exists, how many there are, what several share",
            ]
        )

    def to_dict(self) -> dict[str, object]:
        counts = self.counts
        return {
            "index": str(self.release),
            "vault": str(self.vault),
            "released": counts.released,
            "restored": counts.restored,
            "known": counts.known,
            "refused": [{"name": name, "why": why} for name, why in counts.refused],
            "copies": counts.copies,
            "left_out": counts.left_out,
            "vanished": counts.vanished,
            "pruned": counts.pruned,
            "stored": counts.stored,
            "ledger": self.charged,
            "recipe": self.recipe.to_fields(),
            "guarantee": to_plain(self.guarantee),
            "files": to_plain(self.files),
            "expected": to_plain(self.expected),
        }


def protect(
    photos: PathText | None = None,
    release: PathText | None = None,
    *,
    embeddings: PathText | Embeddings | RowSource | None = None,
    model: str | None = None,
    epsilon: float | None = None,
    ledger: PathText | Ledger | None = None,
    dataset: str | None = None,
    actor: str | None = None,
    purpose: str = "",
    vault: PathText | None = None,
    vault_dataset: str = "",
    encoder: str | PathText | Encoder | None = None,
    fast: bool = False,
    public: PathText | None = None,
    public_embeddings: PathText | None = None,
    own_names: str | Sequence[str] | None = None,
    check_first: bool = False,
    accept_chance: bool = False,
    people: str | Mapping[str, str] | None = None,
    max_per_person: int | None = None,
    files: Sequence[str] | None = None,
    names: Names | None = None,
    method: str | None = None,
    unit: str | None = None,
    calibration: str | None = None,
    cells: int | None = None,
    bits: int | None = None,
    first_page: bool | None = None,
    prior: float | None = None,
    prune: bool = False,
    thumbnails: bool = False,
    new_release: bool = False,
    seed: int | None = None,
    workers: str | None = None,
    page: bool = True,
    link: bool = False,
    progress: Progress = no_progress,
) -> ProtectedPhotos:
    """Release one noisy code per photo of a folder, so that others can search without the photos.

    The ledger is charged before anything is released. Run it again after the folder has changed or
    after a stop: a photo has one code for good, however it is moved, renamed, copied or brought
    back, and it is charged once. Two folders result: `release` to share, and a vault to keep.

    Parameters:
        photos: the folder of photos; subfolders are included.
        release: the folder to share: a new one, or one to continue with the same options.
        embeddings: instead of photos, a file of vectors that were computed from them (.npy, .npz
            or Parquet, with ids), which is read in pieces; or vectors in memory, as
            `Embeddings.from_rows` takes them. Searching then needs vectors of the same model.
        model: with `embeddings`, the name of the model that made them (default: the file's name).
        epsilon: the privacy budget per unit (default 8).
        ledger: file or postgresql:// address of the ledger that is charged, or an open ledger; by
            default the one that earlier releases of this vault were charged to, or none.
        dataset: the photos' name in the ledger (default: the folder's name).
        actor: who asks for the release, for the ledger (default: the operating system's user).
        purpose: what the release is for, for the ledger.
        vault: the folder of the vault (default: `release` with ".vault" appended).
        vault_dataset: the name of the photos in the vault, where it holds several data sets.
        encoder: the image encoder: a built-in name (lite0, lite2, both, pixels), a folder of ONNX
            files, `hub:owner/model@commit`, or an opened `OnnxEncoder`. By default lite2;
            searching needs the same encoder again.
        fast: use the small built-in network, about four times as fast, where no encoder is given.
        public: public pictures like the photos, from which the cells are made: a folder (best with
            one subfolder per class) or the name of a data set. By default the built-in ones.
        public_embeddings: public vectors of the same model, as a file like `embeddings`, in place
            of public pictures; ids such as "cat/17" name classes.
        own_names: public words for what the photos show ("forest, glacier, sea", a list, or a file
            with one name on each line); they make the cells where no public pictures are given.
        check_first: judge what search will find by a sample of the photos, for the owner only,
            rather than by the public pictures or an even spread over the cells.
        accept_chance: release also where search is expected to find little more than chance;
            otherwise that is refused before anything is charged.
        people: whose photos they are: "folder" (the first subfolder), "dicom" (PatientID),
            "FILE.csv:COLUMN", "none", or a mapping from file name to person. By default nobody's;
            a new release of a folder with DICOM files needs a word, because one patient is often
            on several of them.
        max_per_person: the most images of one person that are released (default 1 with `people`).
        files: names of the photos relative to the folder; by default all photos in it.
        names: "random" ids in the release (default), or "keep" for the photos' own names.
        method: "codebook" (default), "phashing-itq", "phashing-sh" or "phashing-lsh".
        unit: "record" (a whole photo, default) or "bit" (phashing only).
        calibration: "proven" (default) or "paper" (phashing only).
        cells: number of cells of a codebook (default: from epsilon).
        bits: number of bits of a phashing code (default: from epsilon).
        first_page: use more cells: better first ten hits, a worse order of the rest.
        prior: prior probability that a photo matches a query (default 0.01).
        prune: remove the codes of photos that are gone.
        thumbnails: keep small pictures in the vault, for contact sheets.
        new_release: start anew where the vault of `release` was lost; all photos are released and
            charged again.
        seed: draw the noise from this seed, for trials; the guarantee is marked as a simulation.
        workers: "local", or the address of a Ray cluster, to share the work.
        page: write `search.html`, with which a receiver searches in a browser.
        link: sign with the vault's own key rather than one for this release, so that receivers see
            that two releases come from one owner.
        progress: called with (stage, done, total).

    Returns:
        What was released, at which guarantee, and what was charged.

    Raises:
        BudgetExceeded: if the ledger has too little left; nothing is released.
        InvalidData: if the folder holds no photos, the vault does not belong to the release, or
            another run uses the vault for too long.
        RolledBack: if the vault or the ledger is an older copy than the other, or than `release`;
            nothing is charged or released. `reconcile_budget` carries out what the owner decides.
        InvalidParameter: if an option is out of range, or differs from what `release` was made
            with, or search is expected to find little more than chance.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (64, 64), "red").save(folder / "red.png")
        >>> made = protect(folder, f"{folder}.release", epsilon=8, encoder="pixels")
        >>> made.counts.released, made.guarantee.epsilon
        (1, 8.0)
    """
    if photos is not None and not isinstance(photos, (str, PathLike)):
        kind = type(photos).__name__
        raise InvalidParameter(f"photos is a folder, got {kind}: vectors are given by embeddings=.")
    if release is None or (photos is None) == (embeddings is None):
        raise InvalidParameter(
            "give a folder of photos, or vectors by embeddings= (--embeddings): one of the two. "
            "For example: blindsight protect photos/ --out release (in Python: "
            'protect("photos", "release"))'
        )
    vectors = None if embeddings is None else _open_vectors(embeddings, model)
    if vectors is not None and (
        encoder is not None or fast or files is not None or thumbnails or people == "dicom"
    ):
        raise InvalidParameter(
            "vectors were computed already: leave out --encoder, --fast, --thumbnails, files= and "
            "--people dicom."
        )
    source, target = Path(photos or "") if vectors is None else vectors.file, Path(release)
    if people in (None, "none"):
        defaults.refuse_persons(unit, max_per_person)
    vault_path = vault_beside(target) if vault is None else Path(vault)
    inventory = Inventory(tuple(files or ()))
    if files is None and vectors is None:
        inventory = list_photos(source, leave_out=(target, vault_path))
    listed = list(inventory.photos)
    existing = ReleaseFolder.find(target)
    if people is None and existing is None and files is None:
        defaults.ask_for_people(listed)
    if people == "none":
        people = None
    options: dict[str, object] = {
        "method": method,
        "epsilon": epsilon,
        "unit": unit,
        "calibration": calibration,
        "features": None,
        "public": defaults.public_name(public, public_embeddings),
        "first_page": first_page,
        "prior": prior,
        "seed": seed,
        "bits": defaults.code_size(
            method or (existing.recipe.get("method") if existing else None), cells, bits
        ),
    }
    chosen = encoder if vectors is None else vectors
    fields, opened_encoder = _chosen_encoder(chosen, existing, fast=fast)
    options |= fields
    if own_names is not None:
        options["own_names"] = defaults.own_names(own_names)
    if existing is not None:
        refuse_foreign_files(target)
    if existing is not None and new_release:
        existing, vault_path = None, unused_path(vault_path)
    if vectors is not None and not len(vectors):
        raise InvalidData(f"{source} holds no vectors. Check the path.")
    if existing is None and vectors is None and not listed:
        raise InvalidData(no_photos(source, inventory.skipped))
    vault_is_new = not (vault_path / "key").exists()
    opened = open_vault(vault_path, existing)
    rows: VectorRows | None = None
    with opened.running(), ExitStack() as cleanup:
        charging = False
        # While this run waited for the vault, another one may have used it, or made the release.
        vault_is_new = vault_is_new and not opened.releases()
        try:
            if not (existing or new_release) and (existing := ReleaseFolder.find(target)):
                open_vault(vault_path, existing)  # refuses one that is not the release's
            recipe = _recipe(options, existing, opened)
            if recipe.identity is not None:
                recipe = recipe.with_encoder(opened_encoder, what=str(target))
            if recipe.own_pictures and vectors is not None:
                refuse_private_vectors(Path(recipe.public), vectors)
            elif recipe.own_pictures and not is_vector_file(recipe.public):
                refuse_private(recipe.public, source, listed)
            id_choice, per_person = _choices(existing, names, people, max_per_person)
            progress("learning from public data", 0, 0)
            coder = encoder_in_vault(
                opened, recipe, photo_encoder.make_encoder, photo_encoder.load_encoder
            )
            guarantee = folder_guarantee(
                coder.guarantee, names=id_choice, most=per_person, of_vectors=recipe.of_vectors
            )
            mechanism = mechanism_id(coder, guarantee)
            number = opened.release_of(mechanism)
            if existing is not None and existing.release != number:
                raise InvalidParameter(
                    f"{target} was made by another hash function or mechanism than this machine "
                    "makes now; the two together would be two releases. Restore its files from a "
                    "copy, or choose another --out (charged again)."
                )
            if vectors is not None:
                rows = VectorRows.copied(vectors, opened.path / _VECTORS)
                cleanup.callback(rows.remove)
                listed = [name for ids, _ in vectors.pieces() for name in ids]
            prepared = None
            # Workers decode photos themselves; at a reduced scale photos have other pixels than
            # those by which they are recognised. Elsewhere a photo is decoded once.
            if rows is None and not workers and recipe.image.preparation.at_least is None:
                file = cleanup.enter_context(TemporaryFile(dir=opened.path))
                prepared = PreparedPhotos(file, recipe.image.preparation.prepare)
            read = partial(scan, decoded=None if prepared is None else prepared.keep)
            contents = (read if rows is None else partial(scan_vectors, rows))(
                source,
                listed,
                opened,
                persons=persons_of(source, listed, people) if isinstance(people, str) else people,
                dataset=vault_dataset,
                progress=partial(progress, "recognising photos"),
            )
            noun, expected = "photos" if vectors is None else "vectors", None
            if existing is None and coder.codebook is not None:
                expected = even_use(coder.codebook, len(contents.records), noun)
                if check_first:
                    sample = _sample_rows(coder, source, listed, vectors)
                    expected = predict_use(coder.codebook, sample, basis=f"{noun} of yours")
                progress(f"expected: {expected.line()}", 0, 0)
                if expected.at_chance and not accept_chance:
                    raise InvalidParameter(
                        f"{expected.line()} Nothing was charged. To release them all the same, say "
                        "so: accept_chance=True (--accept-chance)."
                    )
            if per_person:
                # Refuses people with more images released, before anything is charged.
                opened.chosen(number, contents.records, per_person)
            charging = True
            charged = _charge(
                opened,
                number,
                guarantee,
                ledger,
                dataset or (source.resolve().name if vectors is None else source.stem),
                records=contents.records,
                most=per_person,
                existing=existing,
                actor=actor,
                purpose=purpose,
                noun=noun,
            )
        except BaseException as error:
            # A vault that was asked to pay stays, unless the charge was refused: its key is how the
            # charge is recognised when the command is run again.
            refused = isinstance(error, (BudgetExceeded, UnitMismatch, NotProven))
            if vault_is_new and (not charging or refused):
                shutil.rmtree(vault_path, ignore_errors=True)
            raise
        folder = existing or ReleaseFolder(
            target, recipe.to_fields(), opened.number, number, id_choice, per_person
        )
        opened.note(source=str(source.resolve()), **{f"recipe {number}": recipe.to_fields()})
        index = HammingIndex(coder.n_bits, names=True, guarantee=guarantee, decoding=coder.decoding)
        if existing is not None and existing.codes.exists():
            index = existing.stored(index)
        counts = sync_release(
            folder,
            index,
            source if rows is None else rows,
            contents,
            opened,
            coder,
            guarantee,
            mechanism,
            prune=prune,
            pool=pool_at(workers),
            prepared=prepared,
            progress=partial(progress, "releasing codes"),
        )
        if thumbnails or opened.fact("thumbnails"):
            opened.note(thumbnails=True)
            sync_thumbnails(
                opened,
                source,
                contents,
                prune=prune,
                progress=partial(progress, "making thumbnails"),
            )
        progress("writing what is shared", 0, 0)
        manifest = share_release(
            folder,
            index,
            coder,
            guarantee,
            opened,
            continued=existing is not None,
            page=page,
            link=link,
        )
        return ProtectedPhotos(
            release=target,
            vault=opened.path,
            counts=counts,
            charged=charged,
            recipe=recipe,
            guarantee=guarantee,
            names=folder.names,
            max_per_person=folder.most,
            created=existing is None,
            release_id=number,
            files=inventory.files_read(
                read=len(contents.records), copies=counts.copies, damaged=counts.refused
            ),
            expected=expected,
            fingerprint=manifest.fingerprint,
        )


def _chosen_encoder(
    encoder: PathText | Encoder | None,
    existing: ReleaseFolder | None,
    *,
    fast: bool,
) -> tuple[dict[str, object], object]:
    """Return a recipe's fields that name the encoder, and the encoder where it is not built in."""
    if encoder is None:
        if existing is not None:
            return {}, None
        return {"features": defaults.default_encoder(fast=fast)}, None
    if existing is not None and existing.recipe.get("features") == encoder:
        return {"features": encoder}, None
    if isinstance(encoder, str) and encoder in STORED and encoder not in BUILT_IN:
        return {"features": encoder}, None
    if isinstance(encoder, str) and encoder in BUILT_IN and not Path(encoder).is_dir():
        return {"features": BUILT_IN[encoder].name}, None
    opened = open_encoder(encoder)
    if isinstance(opened, BuiltIn):
        return {"features": opened.name}, None
    if isinstance(opened, Embeddings) and opened is not encoder:
        raise InvalidParameter(
            f"{opened.name} has vectors only, and a folder of photos needs an encoder that reads "
            "images. Give the file as embeddings= (--embeddings) in place of the folder."
        )
    if not isinstance(opened, OnnxEncoder | Embeddings):
        raise InvalidParameter(
            f"{opened.name} is an encoder of your own class, which a release cannot name for "
            "others. Give lite0, lite2, both, a folder of ONNX files, or embeddings=."
        )
    return {"features": opened.name, "identity": opened.identity()}, opened


def _open_vectors(embeddings: PathText | Embeddings | RowSource, model: str | None) -> Embeddings:
    if isinstance(embeddings, Embeddings):
        return embeddings
    if not isinstance(embeddings, (str, PathLike)):
        return Embeddings.from_rows(embeddings, name=model or "embeddings")
    file = Path(embeddings)
    if not file.is_file():
        raise InvalidData(f"{file} is not a file of vectors. Check the path.")
    return Embeddings(file, name=model or file.stem)


def _sample_rows(
    coder: PhotoEncoder, source: Path, names: Sequence[str], vectors: Embeddings | None
) -> NDArray[np.floating]:
    """Feature rows of some of the photos, spread over the folder."""
    if vectors is not None:
        return vectors.take(defaults.CHECKED_PHOTOS)[1]
    rows = []
    for name in names[:: max(1, -(-len(names) // defaults.CHECKED_PHOTOS))]:
        try:
            rows.append(coder.rows(coder.recipe.image.read(source / name)[None])[0])
        except InvalidData:
            continue  # a file that cannot be read is named when the photos are released
    if not rows:
        raise InvalidData("none of the photos can be read, so none can be looked at first.")
    return np.stack(rows)


def _choices(
    existing: ReleaseFolder | None,
    names: Names | None,
    people: object,
    max_per_person: int | None,
) -> tuple[Names, int]:
    """Return the kind of ids and the bound per person; a release keeps those it was made with."""
    default = defaults.MAX_IMAGES_PER_PERSON
    most = default if max_per_person is None else max_per_person
    per_person = 0 if people is None else checks.whole("--most", most)
    if existing is None:
        return checks.one_of("--names", names or "random", ("random", "keep")), per_person
    if names is not None and names != existing.names:
        raise InvalidParameter(
            f"{existing.path} was made with --names {existing.names}. Choose another --out to "
            "change it."
        )
    if per_person != existing.most:
        was = f"at most {existing.most} images of one person" if existing.most else "no persons"
        raise InvalidParameter(
            f"{existing.path} was made with {was}. Give the same --people and --most to continue."
        )
    return existing.names, per_person


def _recipe(
    options: Mapping[str, object], existing: ReleaseFolder | None, vault: Vault
) -> CodeRecipe:
    """Return the recipe of a new release, or that of an existing one if the options agree."""
    if existing is None:
        return defaults.code_recipe(**options)
    # The owner's copy names the folder of public images; the copy in the release does not.
    owned = vault.fact(f"recipe {existing.release}") or {}
    recipe = CodeRecipe.from_fields(
        {**existing.recipe, "public": owned.get("public", existing.recipe.get("public"))}
    )
    for name, value in options.items():
        if value is not None and getattr(recipe, name) != value:
            size = "cells" if recipe.method == "codebook" else "bits"
            options_of = {"bits": size, "features": "encoder", "first_page": "first-page"}
            option = options_of.get(name, name)
            raise InvalidParameter(
                f"{existing.path} was made with --{option} {getattr(recipe, name)}, now {value} is "
                "asked for. Leave the option out to continue, or choose another --out (a second "
                "release, charged again)."
            )
    return recipe


def _charge(
    vault: Vault,
    number: str,
    guarantee: Guarantee,
    ledger: PathText | Ledger | None,
    dataset: str,
    *,
    records: Iterable[str],
    most: int,
    existing: ReleaseFolder | None,
    actor: str | None,
    purpose: str,
    noun: str,
) -> str:
    """Charge the release under its number, so that it is charged once however often it is tried."""
    opened = open_ledger(ledger, dataset, vault, actor=actor, purpose=purpose)
    known = {each.release for each in vault.releases()} if opened is None else {number}
    if existing is not None and number not in known:
        raise RolledBack(
            f"The vault {vault.path} is older than the release {existing.path}, which it does not "
            "know. Put the newest copy of the vault in its place, or start anew with "
            "--new-release. Nothing was released."
        )
    shown = []  # a release folder that vault and ledger do not know is newer than they are
    if existing is not None:
        shown = [ReleaseOnDisk(str(existing.path), existing.vault, number, guarantee.costs)]
    with nullcontext() if opened is None else opened:
        charged = vault.charge(
            opened,
            guarantee,
            release=number,
            what=f"codes of {noun}, each released once",
            records=records,
            most=most,
            releases=shown,
        )
        if opened is None:
            return "not charged: no ledger was given"
        units = {balance.unit for balance in opened.balances()}
    account = f"charged to {opened.dataset}"
    if not charged.new:
        return f"{account} by an earlier run"
    costs = [str(cost) for cost in guarantee.costs if cost.unit in units]
    return f"{' and '.join(costs)} {account}"

"""One encoder object through every verb; what is saved refuses every other encoder."""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight.app.audit import audit_release
from blindsight.app.compare import compare
from blindsight.app.encoders import export_encoder
from blindsight.app.learn_metric import learn_metric
from blindsight.app.protect import protect
from blindsight.app.search import search
from blindsight.app.send import learn_from_statistics, send_statistics
from blindsight.app.tag import publish_tags, tag
from blindsight.app.train_tagger import start_tagger, train_tagger
from blindsight.app.train_together import read_labelled, train_together
from blindsight.core.errors import InvalidData, InvalidParameter, MissingData
from blindsight.data import Files
from blindsight.encoders import Embeddings, Encoder, encode_images, open_encoder
from blindsight.encoders.public_pictures import built_in_images, flower, temple
from blindsight.index import CodebookIndex
from blindsight.index.encoder import CodeRecipe
from blindsight.index.release_folder import ReleaseFolder
from blindsight.metric import DPPMetric
from blindsight.sketching import FeatureStatistics
from blindsight.tagging import PrivateTagger
from public_knowledge import few_public_names_and_pictures

KINDS = ("pair", "embeddings", "lite0")
REFUSAL = r"was made with the encoder .*(differs|not built in)"


@dataclass(frozen=True)
class Case:
    """An encoder, another one, and photos of two kinds.

    Parameters:
        encoder: what everything is made with.
        other: an encoder that must be refused.
        photos: 24 crops of a flower and a temple.
        sorted: 80 others, in one subfolder for each kind.
        sorted_encoder: the encoder; for vectors, those of the sorted photos.
        public: vectors of public pictures by the pair, which also made the vectors.
        made: a release of `photos`, made when first asked for, with its vault; only read.
        folder: where results go.
    """

    encoder: Encoder
    other: Encoder
    photos: Path
    sorted: Path
    sorted_encoder: Encoder
    public: Path
    made: Callable[[], Path]
    folder: Path

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.photos.iterdir())

    @property
    def given(self) -> Encoder | None:
        """What a user must give again: nothing for a built-in encoder."""
        return None if self.encoder.identity()["kind"] == "built-in" else self.encoder

    def refused(self, use: Callable[[Encoder], object]) -> None:
        with pytest.raises(InvalidParameter, match=REFUSAL):
            use(self.other)


@pytest.fixture(scope="module", autouse=True)
def few_names() -> Iterator[None]:
    with few_public_names_and_pictures("flower", "temple", "dog", "car", "beach"):
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(24):
        name, image = (("flower", flower()), ("temple", temple()))[number % 2]
        top, left = rng.integers(0, 120, 2)
        crop = image[top : top + 300, left : left + 400]
        Image.fromarray(crop).resize((160, 120)).save(folder / f"{name}{number:02}.png")
    return folder


@pytest.fixture(scope="module")
def sorted_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos in one subfolder for each kind, 40 of each."""
    folder = tmp_path_factory.mktemp("sorted")
    for number in range(80):
        kind, image = (("flower", flower()), ("temple", temple()))[number % 2]
        (folder / kind).mkdir(exist_ok=True)
        crop = image[number : number + 300, 2 * number : 2 * number + 400]
        Image.fromarray(crop).resize((160, 120)).save(folder / kind / f"{number:02}.png")
    return folder


@pytest.fixture(scope="module")
def conse(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """A real image-text pair in CLIP's layout: ConSE over Lite0 and MiniLM."""
    try:
        folder = tmp_path_factory.mktemp("pair") / "conse"
        return open_encoder(export_encoder("lite0", folder, pair=True).folder)
    except MissingData as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def public(conse: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pair's vectors of public pictures."""
    file = tmp_path_factory.mktemp("public") / "public.npz"
    rows = conse.images(np.stack([conse.prepare(crop) for crop in built_in_images(120, 96)]))
    np.savez(file, vectors=rows)
    return file


def vectors(encoder: Encoder, folder: Path, out: Path) -> Path:
    """A file of the vectors of all photos in a folder."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    rows = encoder.images(np.stack([encoder.read(folder / name) for name in names]))
    np.savez(out, vectors=rows, ids=np.array(names))
    return out


@pytest.fixture(scope="module")
def embeddings(
    conse: Encoder, photos: Path, sorted_photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Embeddings, Embeddings]:
    """The pair's vectors of the photos, with texts, and of the sorted photos."""
    folder = tmp_path_factory.mktemp("vectors")
    texts = ["flower", "temple", "dog", "car", "beach"]
    np.savez(folder / "texts.npz", vectors=conse.texts(texts), ids=np.array(texts))
    file = vectors(conse, photos, folder / "vectors.npz")
    sorted_file = vectors(conse, sorted_photos, folder / "sorted.npz")
    return (
        Embeddings(file, name="conse", texts=folder / "texts.npz"),
        Embeddings(sorted_file, name="conse"),
    )


@pytest.fixture(scope="module", params=KINDS)
def kind(
    request: pytest.FixtureRequest,
    photos: Path,
    conse: Encoder,
    embeddings: tuple[Embeddings, Embeddings],
    public: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Encoder, Encoder, Callable[[], Path]]:
    """An encoder, another one, and the release that the tests of this encoder read."""
    encoder, other = conse, open_encoder("lite0")
    if request.param == "lite0":
        encoder, other = other, encoder
    elif request.param == "embeddings":
        encoder = embeddings[0]
        other = Embeddings(encoder.file, name="another")
    folder = tmp_path_factory.mktemp(request.param)
    return encoder, other, functools.cache(lambda: release(encoder, photos, public, folder))


@pytest.fixture
def case(
    kind: tuple[Encoder, Encoder, Callable[[], Path]],
    photos: Path,
    sorted_photos: Path,
    embeddings: tuple[Embeddings, Embeddings],
    public: Path,
    tmp_path: Path,
) -> Case:
    encoder, other, made = kind
    known = embeddings[1] if isinstance(encoder, Embeddings) else encoder
    return Case(encoder, other, photos, sorted_photos, known, public, made, tmp_path)


def tags(case: Case) -> None:
    labels = case.folder / "labels.csv"
    lines = [f"{name},{name[:6]}" for name in case.names]
    labels.write_text("\n".join(["image,labels", *lines]))
    model, public = case.folder / "tagger.safetensors", None
    made = train_tagger(
        case.photos,
        labels=labels,
        vocabulary="flower,temple",
        encoder=case.encoder,
        public=public,
        epsilon=8,
        out=model,
        random_state=0,
    )
    assert made.labels == ("flower", "temple")
    stored = PrivateTagger.load(model).public_["extractor"]
    assert stored == {"kind": "encoder", "size": 0, "identity": case.encoder.identity()}
    assert len(tag(model, case.photos, encoder=case.given).images) == len(case.names)
    case.refused(lambda other: tag(model, case.photos, encoder=other))
    case.refused(lambda other: publish_tags(model, case.photos, encoder=other))


def words_to_tags(case: Case) -> None:
    model = case.folder / "started.safetensors"
    if isinstance(case.encoder, Embeddings):
        with pytest.raises(MissingData, match="nothing to start from"):
            start_tagger("flower,temple", encoder=case.encoder, out=model)
        return
    start_tagger("flower,temple", encoder=case.encoder, out=model)
    tagger = PrivateTagger.load(model)
    rows = encode_images(case.encoder, np.stack([flower()[:300, :400], temple()[:300, :400]]), None)
    scores = tagger.logits(rows)
    assert scores[0, 0] > scores[0, 1] and scores[1, 1] > scores[1, 0]


def metric(case: Case) -> None:
    names = case.names
    alike = [(a, b, int(a[:6] == b[:6])) for a, b in itertools.pairwise(names)]
    pairs = case.folder / "pairs.csv"
    pairs.write_text("\n".join(["a,b,label", *(f"{a},{b},{same}" for a, b, same in alike)]))
    model = case.folder / "metric.safetensors"
    learn_metric(pairs, images=case.photos, encoder=case.encoder, out=model, random_state=0)
    assert DPPMetric.load(model).about_ == {"encoder": case.encoder.identity()}
    near = compare(model, [names[0]], images=case.photos, encoder=case.given, nearest=3)
    assert len(near.distances) == 3
    case.refused(lambda other: compare(model, [names[0]], images=case.photos, encoder=other))


def release(encoder: Encoder, photos: Path, public: Path, folder: Path) -> Path:
    """A release of the photos; for vectors, with public vectors of other crops."""
    target = folder / "release"
    if isinstance(encoder, Embeddings):
        protect(release=target, embeddings=encoder, public_embeddings=public, epsilon=12, seed=1)
    else:
        names = ("flower", "temple", "dog", "car", "beach")
        protect(photos, target, encoder=encoder, own_names=names, epsilon=12, seed=1)
    return target


def by_picture_vector_and_words(case: Case) -> None:
    target = case.made()
    recipe = CodeRecipe.from_fields(ReleaseFolder.read(target).recipe)
    assert recipe.identity in (None, case.encoder.identity())
    rows = encode_images(
        case.encoder, Files([case.photos / name for name in case.names]), case.names
    )
    flowers = [name for name in case.names if name.startswith("flower")]
    asked = {"encoder": case.given, "k": 4}
    hits = search(target, vector=rows[case.names.index(flowers[0])], **asked).hits
    assert sum(hit.names[0].startswith("flower") for hit in hits) >= 3
    hits = search(target, text="flower", **asked).hits
    assert sum(hit.names[0].startswith("flower") for hit in hits) >= 3
    case.refused(lambda other: search(target, text="flower", encoder=other))
    if isinstance(case.encoder, Embeddings):
        with pytest.raises(InvalidParameter, match="a picture cannot be compared"):
            search(target, case.photos / flowers[0], **asked)
        return
    hits = search(target, case.photos / flowers[0], **asked).hits
    assert sum(hit.names[0].startswith("flower") for hit in hits) >= 3


def audit(case: Case) -> None:
    target = case.made()
    vault = Path(f"{target}.vault")
    assert not audit_release(target).refuted
    if isinstance(case.encoder, Embeddings):
        with pytest.raises(InvalidData, match="made from vectors"):
            audit_release(target, vault=vault)
        return
    assert "found" in str(audit_release(target, vault=vault, encoder=case.given).text(100))
    case.refused(lambda other: audit_release(target, vault=vault, encoder=other))


def statistics(case: Case) -> None:
    encoder, sent, given = case.sorted_encoder, case.folder / "sent.statistics", None
    if isinstance(encoder, Embeddings):
        given = case.public
        with pytest.raises(InvalidParameter, match="give public vectors of the same model"):
            send_statistics(case.sorted, sent, epsilon=16, encoder=encoder)
    options = {"encoder": encoder, "public": given, "random_state": 0}
    send_statistics(case.sorted, sent, epsilon=16, **options)
    assert FeatureStatistics.load(sent).public_["encoder"] == encoder.identity()
    learned = learn_from_statistics(sent, test=case.sorted, encoder=encoder)
    assert learned.accuracy is not None and learned.accuracy > 0.9
    with pytest.raises(InvalidParameter, match=rf"{sent} was made with the encoder .*differs"):
        learn_from_statistics(sent, test=case.sorted, encoder=case.other)
    if case.given is not None:
        with pytest.raises(InvalidParameter, match=rf"{sent} .* which is not built in. Give"):
            learn_from_statistics(sent, test=case.sorted)


def together(case: Case) -> None:
    encoder, folder, rows = case.sorted_encoder, case.folder / "few", None
    for number in range(24):
        photo = Path("temple" if number % 2 else "flower", f"{number:02}.png")
        (folder / photo).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(case.sorted / photo, folder / photo)
    if isinstance(encoder, Embeddings):
        with np.load(case.public) as public:
            vectors, rows = public["vectors"], case.folder / "rows.npz"
        np.savez(rows, X=vectors, y=np.resize(np.array(["flower", "temple"]), len(vectors)))
        with pytest.raises(InvalidParameter, match="give public rows of the same model"):
            train_together(folder, sites=3, encoder=encoder, encrypt=False)
    for number, epsilon in enumerate((None, 20.0)):
        out = case.folder / f"model{number}.safetensors"
        made = train_together(
            folder, sites=3, encoder=encoder, epsilon=epsilon, encrypt=False, out=out, public=rows
        )
        assert made.classes == ("flower", "temple")
        assert len(read_labelled(folder, encoder=case.given and encoder, model=out).X) == 24
        with pytest.raises(InvalidParameter, match=rf"{out} was made with the encoder .*differs"):
            read_labelled(folder, encoder=case.other, model=out)
        assert str(case.folder).encode() not in out.read_bytes()  # no path of this machine


VERBS = (by_picture_vector_and_words, audit, tags, words_to_tags, metric, statistics, together)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_an_encoder_goes_through_every_verb_and_another_is_refused(
    case: Case, verb: Callable[[Case], None]
) -> None:
    verb(case)


def test_milvus_answers_for_a_pair_as_the_file_does(
    milvus: Path, photos: Path, conse: Encoder, public: Path, tmp_path: Path
) -> None:
    target = release(conse, photos, public, tmp_path)
    asked = {"encoder": conse, "k": 5, "text": "flower"}
    here = search(target, **asked)
    there = search(target, milvus=str(milvus), collection="pair", **asked)
    assert {hit.hit.cell for hit in here.hits} == {hit.hit.cell for hit in there.hits}
    with pytest.raises(InvalidParameter, match=REFUSAL):
        search(target, milvus=str(milvus), collection="pair", text="flower", encoder="lite0")


@pytest.mark.parametrize("source", ["pair", "vectors"])
def test_workers_release_the_codes_that_one_process_does(
    ray_cluster: object,
    photos: Path,
    conse: Encoder,
    embeddings: tuple[Embeddings, Embeddings],
    public: Path,
    tmp_path: Path,
    source: str,
) -> None:
    codes = []
    for workers in (None, "local"):
        target = tmp_path / f"release-{workers}"
        options = {"public_embeddings": public, "seed": 1, "workers": workers}
        if source == "pair":
            protect(photos, target, encoder=conse, **options)
        else:
            protect(release=target, embeddings=embeddings[0].file, **options)
        with CodebookIndex.load(target / "codes.index") as index:
            codes.append(sorted(code.tobytes() for _, block in index.items() for code in block))
    assert codes[0] == codes[1] and len(codes[0]) == 24

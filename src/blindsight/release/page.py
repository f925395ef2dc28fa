"""`search.html`: one page that searches a release in any browser, offline and without a server.

The page holds the released codes, the public codebook and the public network, and runs the
network in plain JavaScript. Its content security policy forbids every connection. All data of a
release are in blocks that the owner signs; the code is the same for every release of one version.

A block is base64 of gzip of the length of a head (4 bytes), the head as JSON (name, shape, type and
place of each array) and the arrays. Weights are whole numbers with one scale for each row: 16 bits
for the network, 16-bit floats for the codebook.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, resources
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks import Codebook, Reading
from blindsight.codebooks.cells import ClassCells, GroupCells, PairCells, class_points
from blindsight.core import storage
from blindsight.core.codes import from_codes, tie_order, to_signs
from blindsight.core.errors import BlindsightError, InvalidParameter, MissingData, UncheckedFile
from blindsight.data import cache_folder
from blindsight.encoders import BuiltIn, OnnxEncoder
from blindsight.encoders.builtin import head_of
from blindsight.encoders.embeddings import public_texts
from blindsight.index.hamming import HammingIndex
from blindsight.privacy import Guarantee
from blindsight.privacy.accounting import ShuffleStatement
from blindsight.privacy.mechanisms import BitFlip
from blindsight.release.manifest import Signer

__all__ = [
    "MAX_CELLS",
    "MAX_ENTRIES",
    "FlippedCodes",
    "PageFacts",
    "code_digest",
    "page_sources",
    "search_page",
]

#: A page with more entries is slow to open; the command line is the better tool for them.
MAX_ENTRIES = 200_000
#: The page refuses a codebook with more cells; `LIMITS` in ui.js states the same two numbers.
MAX_CELLS = 1_000_000
Layout = Literal["json", "float32", "float16", "scaled8", "scaled16", "uint16", "uint32"]
JsonValue = Sequence[object] | Mapping[str, object]
Values = dict[str, tuple[NDArray[Any] | JsonValue, Layout]]
_WEIGHT_STEPS = 32767  # largest whole number that stands for a weight of the network
_WORD_AXES = 96
_SCRIPTS = ("engine.js", "ui.js")
_NOTICES = (
    "The network is EfficientNet-Lite (Apache 2.0). Words use vectors of all-MiniLM-L6-v2 "
    "(Apache 2.0) and nouns of WordNet 3.0 (Princeton University)."
)


@dataclass(frozen=True)
class PageFacts:
    """What the page says of a release beside its data.

    Parameters:
        release: the release's number.
        names: "random" ids or "keep".
        guarantee: what is promised for each photo.
        shuffled: the central guarantee, where it can be stated.
        encoder: the name of the encoder, for a receiver who must bring vectors of it.
    """

    release: str
    names: str
    guarantee: Guarantee
    shuffled: ShuffleStatement | None = None
    encoder: str = ""


@dataclass(frozen=True)
class FlippedCodes:
    """A linear hash function whose bits were flipped.

    Parameters:
        weights: what each feature adds to each bit's value (d, bits).
        offset: the values of a row of zeros (bits,).
        beta: the probability with which a released bit was flipped.
    """

    weights: NDArray[np.float64]
    offset: NDArray[np.float64]
    beta: float

    @classmethod
    def of(cls, hasher: BitHasher) -> FlippedCodes | None:
        """Read the function off a hasher; None where its values are not linear in the features."""
        width = int(hasher.n_features_in_)
        offset = hasher.decision_function(np.zeros((1, width)))[0]
        weights = hasher.decision_function(np.eye(width)) - offset
        tried = np.random.default_rng(0).normal(size=(8, width)) / math.sqrt(width)
        values = hasher.decision_function(tried)
        linear = np.allclose(tried @ weights + offset, values, rtol=1e-6, atol=1e-8)
        beta = float(hasher.mechanism_.beta)
        # The package's scores are expected inner products with the code before it was flipped.
        return cls(weights * (1 - 2 * beta), offset * (1 - 2 * beta), beta) if linear else None


class BitHasher(Protocol):
    """What a page needs of a hash function with flipped bits."""

    n_features_in_: int

    @property
    def mechanism_(self) -> BitFlip:
        """The mechanism by which bits are flipped."""

    def decision_function(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values whose signs are the bits."""


def search_page(
    facts: PageFacts,
    index: HammingIndex,
    book: Codebook | FlippedCodes,
    encoder: object,
    *,
    signer: Signer | None = None,
    words: bool = True,
) -> str:
    """The page as HTML.

    Parameters:
        facts: what the page says of the release.
        index: the released cells, or codes.
        book: the public cells, or the public hash function.
        encoder: the encoder of the release. Pictures can be searched for with a built-in one,
            vectors with any other.
        signer: signs the data of the page; None leaves it unsigned.
        words: carry a vocabulary, where the encoder has classes and the words are installed.

    Returns:
        The page. The same release gives the same bytes.

    Raises:
        InvalidParameter: The release has more entries, or the codebook more cells, than a page
            can hold.
    """
    if len(index) > MAX_ENTRIES:
        raise InvalidParameter(
            f"a page holds at most {MAX_ENTRIES:,} entries, the release has {len(index):,}. "
            "Search it with `blindsight open`."
        )
    if isinstance(book, Codebook) and book.k > MAX_CELLS:
        raise InvalidParameter(
            f"a page holds at most {MAX_CELLS:,} cells, the codebook has {book.k:,}. "
            "Search the release with `blindsight open`."
        )
    # Gradients and encoders of one's own are not run in the page.
    runs = isinstance(encoder, BuiltIn) and (encoder.network is None or bool(encoder.networks))
    built_in = encoder if isinstance(encoder, BuiltIn) and runs else None
    ids, codes = next(index.items(), (np.empty(0, object), np.zeros((0, 1), np.uint8)))
    cells = from_codes(codes) if isinstance(book, Codebook) else None
    blocks = {"codes": _codes_block(ids, codes, cells, index.n_bits)}
    blocks["book"] = _book_block(book, built_in)
    networks: list[dict[str, object]] = []
    if built_in is not None and built_in.networks:
        blocks["network"], networks = _network_block(built_in)
    page_facts: dict[str, object] = {
        "format": "blindsight page 1",
        "release": facts.release,
        "names": facts.names,
        "pictures": built_in is not None,
        "size": 0 if built_in is None else built_in.size,
        "networks": networks,
        "vector": None if built_in is not None else _vector_facts(book, facts.encoder),
        "book": _book_facts(book, codes, cells, index.n_bits),
        "calibrated": isinstance(book, Codebook) and book.calibrated,
        "labels": _labels(book, encoder) if isinstance(book, Codebook) else [],
    }
    has_words = words and built_in is not None and built_in.network and isinstance(book, Codebook)
    with suppress(MissingData):
        if has_words:
            vocabulary = _words_block()
            blocks["words"] = vocabulary.block
            page_facts |= vocabulary.facts
    blocks["about"] = _json_in_html(page_facts)
    return _filled(facts, len(ids), book, built_in, blocks, signer)


def code_digest() -> str:
    """SHA-256 of the page's code, the same for every release of one version."""
    return hashlib.sha256((_style() + _script()).encode()).hexdigest()


def page_sources(encoder: object) -> dict[str, bool]:
    """Which of the fetched data the page of an encoder can be made with on this machine."""
    if not _knows_names(encoder):
        return {}
    from blindsight.encoders import words

    return {"words": words.words_available(), "class names": words.names_available()}


def _knows_names(encoder: object) -> bool:
    """Whether names of things mean anything to an encoder; to pixels and plain vectors not."""
    return isinstance(encoder, OnnxEncoder) or (
        isinstance(encoder, BuiltIn) and bool(encoder.networks)
    )


def _block(values: Values) -> str:
    """Pack values, each with its layout, into one text."""
    head, body = {}, bytearray()
    for name, (value, layout) in values.items():
        if isinstance(value, np.ndarray):
            shape, data = list(value.shape), _packed(value, layout)
        else:
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
            shape, data = [], text.encode()
        head[name] = {"shape": shape, "type": layout, "start": len(body), "bytes": len(data)}
        body += data + bytes(-len(data) % 8)
    start = json.dumps(head, separators=(",", ":")).encode()
    start += b" " * (-(len(start) + 4) % 8)
    packed = gzip.compress(len(start).to_bytes(4, "little") + start + body, 9, mtime=0)
    return base64.b64encode(packed).decode()


def _packed(array: NDArray[np.generic], layout: Layout) -> bytes:
    plain = {"float32": "<f4", "float16": "<f2", "uint16": "<u2", "uint32": "<u4"}
    if layout in plain:
        return bytes(array.astype(plain[layout]).tobytes())
    steps = 127 if layout == "scaled8" else _WEIGHT_STEPS
    rows = array.reshape(len(array), -1).astype(np.float64)
    scale = (np.maximum(np.abs(rows).max(axis=1), 1e-12) / steps).astype(np.float32)
    whole = np.rint(rows / scale[:, None].astype(np.float64)).clip(-steps, steps)
    if layout == "scaled8":
        return bytes(scale.tobytes() + whole.astype("<i1").tobytes())
    # Low and high bytes apart compress better: the high ones are nearly all 0 or -1.
    planes = whole.astype("<i2").view(np.uint8).reshape(-1, 2)
    return bytes(scale.tobytes() + planes[:, 0].tobytes() + planes[:, 1].tobytes())


def _network_block(encoder: BuiltIn) -> tuple[str, list[dict[str, object]]]:
    """The convolutions of a built-in encoder, kept in the cache because packing takes seconds."""
    identity = json.dumps([encoder.identity(), _WEIGHT_STEPS], sort_keys=True).encode()
    path = cache_folder() / "pages" / f"{hashlib.sha256(identity).hexdigest()[:16]}.safetensors"
    try:
        arrays, fields = storage.load(path, kind="page network")
        return arrays["text"].tobytes().decode("ascii"), list(fields["networks"])
    except (BlindsightError, UncheckedFile, OSError, KeyError, ValueError):
        text, networks = _pack_network(encoder)
    with suppress(OSError):  # the cache is a convenience
        data = {"text": np.frombuffer(text.encode(), np.uint8)}
        storage.save(path, kind="page network", arrays=data, fields={"networks": networks})
    return text, networks


def _pack_network(encoder: BuiltIn) -> tuple[str, list[dict[str, object]]]:
    from blindsight.encoders.network import convolutions, read_weights

    arrays: Values = {}
    networks = []
    for number, name in enumerate(encoder.networks):
        size = encoder.network_size(name)
        layers, prefix = [], f"network{number}."
        for position, layer in enumerate(convolutions(read_weights(name), size)):
            kernel = layer.kernel.reshape(len(layer.kernel), -1)
            arrays[f"{prefix}{position}.kernel"] = kernel, "scaled16"
            arrays[f"{prefix}{position}.bias"] = layer.bias, "float32"
            layers.append(
                {
                    "side": layer.kernel.shape[-1],
                    "stride": layer.stride,
                    "pad": layer.pad[0],
                    "depthwise": layer.groups > 1,
                    "clipped": layer.clipped,
                    "starts": layer.block_starts,
                    "adds": layer.block_adds,
                }
            )
        networks.append({"prefix": prefix, "size": size, "layers": layers})
    return _block(arrays), networks


def _codes_block(
    ids: NDArray[np.object_],
    codes: NDArray[np.uint8],
    cells: NDArray[np.uint32] | None,
    n_bits: int,
) -> str:
    """Every entry: with its cell, in the order in which the package lists ties, or with the number
    of its code, and the codes that occur, as signs.
    """
    if cells is not None:
        order = tie_order(cells)
        names = [str(name) for name in ids[order]]
        layout: Layout = "uint16" if n_bits <= 16 else "uint32"
        return _block({"ids": (names, "json"), "cells": (cells[order], layout)})
    occurring, numbers = np.unique(codes, axis=0, return_inverse=True)
    signs = to_signs(occurring, n_bits).astype(np.float32)
    return _block(
        {
            "ids": ([str(name) for name in ids], "json"),
            "cells": (numbers.ravel(), "uint32"),
            "signs": (signs, "float16"),
        }
    )


def _vector_facts(book: Codebook | FlippedCodes, encoder: str) -> dict[str, object]:
    """Which vectors a page takes whose encoder it cannot run."""
    matrix = book.embedding.axes if isinstance(book, Codebook) else book.weights
    return {"length": len(matrix), "encoder": encoder}


def _book_block(codebook: Codebook | FlippedCodes, encoder: BuiltIn | None) -> str:
    if isinstance(codebook, FlippedCodes):
        weights, offset = codebook.weights, codebook.offset
        return _block({"weights": (weights, "float32"), "offset": (offset, "float32")})
    arrays: Values = {
        "axes": (codebook.embedding.axes, "float16"),
        "centre": (codebook.embedding.centre, "float32"),
    }
    for name, array in codebook.cells.arrays().items():
        whole = array.dtype.kind in "iu"
        layout: Layout = "float16"
        if whole:
            layout = "uint16" if array.max(initial=0) < 1 << 16 else "uint32"
        arrays[name] = array, layout
    if isinstance(codebook.cells, PairCells):
        arrays["norms"] = codebook.cells.norms, "float32"
    classes = None
    if encoder is not None and encoder.network is not None:
        classes = class_points(codebook.embedding, head_of(encoder.network))
    if classes is not None and not _atoms_are(codebook, classes):
        arrays["classes"] = classes, "float16"
    return _block(arrays)


def _atoms_are(codebook: Codebook, classes: NDArray[np.float32]) -> bool:
    cells = codebook.cells
    if not isinstance(cells, GroupCells | PairCells) or cells.atoms.shape != classes.shape:
        return False
    return bool(np.allclose(cells.atoms, classes, atol=1e-5))


def _book_facts(
    codebook: Codebook | FlippedCodes,
    codes: NDArray[np.uint8],
    cells: NDArray[np.uint32] | None,
    n_bits: int,
) -> dict[str, object]:
    if isinstance(codebook, FlippedCodes) or cells is None:
        return {"kind": "bits", "k": len(np.unique(codes, axis=0)), "width": n_bits}
    relevant = Reading.relevant
    if isinstance(codebook.cells, ClassCells):  # only there does it depend on what is stored
        relevant = codebook.reading(np.bincount(cells, minlength=codebook.k)).relevant
    return {
        "kind": codebook.cells.kind,
        "k": codebook.k,
        "width": codebook.embedding.axes.shape[1],
        "rowMean": codebook.embedding.row_mean,
        "epsilon": codebook.epsilon,
        "slope": codebook.slope,
        "relevant": float(relevant),
    }


def _labels(codebook: Codebook, encoder: object) -> list[list[str]]:
    """What each cell roughly shows: its own classes, or the nearest public ones.

    Without the classes' names, which are fetched, cells have no labels: the page is written after
    the charge and must not fail for want of a network.
    """
    cells = codebook.cells
    if isinstance(cells, ClassCells) and codebook.classes:
        answers = cells.groups
        if answers is None:
            answers = np.eye(len(codebook.classes), dtype=np.float32)
        return [
            [codebook.classes[number] for number in np.argsort(-row)[:3] if row[number] > 0.15]
            for row in answers
        ]
    labels: list[list[str]] = [[] for _ in range(codebook.k)]
    if not _knows_names(encoder):
        return labels
    from blindsight.encoders.words import class_names

    try:
        names = class_names()
        points = _points_of_names(codebook, encoder, names)
    except MissingData:
        return labels
    if points is None:
        return labels
    # Where names are divided among the cells, a cell shows the nearest of its own.
    divided = isinstance(cells, GroupCells) and len(cells.group) == len(names)
    for start in range(0, codebook.k, 4096):
        some = np.arange(start, min(start + 4096, codebook.k))
        near = cells.middle(some) @ points.T
        if isinstance(cells, GroupCells) and divided:
            for row, cell in zip(near, some, strict=True):
                own = np.flatnonzero(cells.group == cell)
                labels[cell] = [names[number] for number in own[np.argsort(-row[own])][:3]]
        else:
            for cell, order in zip(some, _two_nearest(near), strict=True):
                labels[cell] = [names[number] for number in order]
    return labels


def _two_nearest(near: NDArray[np.floating]) -> NDArray[np.intp]:
    """The columns of the two largest values of each row; a page may have 86,000 rows to sort."""
    first: NDArray[np.intp] = near.argmax(axis=1)
    if near.shape[1] < 2:
        return first.reshape(-1, 1)
    others = near.copy()
    others[np.arange(len(near)), first] = -np.inf
    return np.stack([first, others.argmax(axis=1)], axis=1)


def _points_of_names(
    codebook: Codebook, encoder: object, names: Sequence[str]
) -> NDArray[np.floating] | None:
    """The names as points among the cells: by the network's own classes, or by a text tower."""
    if isinstance(encoder, BuiltIn):
        if encoder.network is None:
            return None
        classes = class_points(codebook.embedding, head_of(encoder.network))
        return codebook.embedding.moved(classes)
    if not isinstance(encoder, OnnxEncoder):
        return None
    vectors = public_texts(encoder, names)
    return None if vectors is None else codebook.embedding.texts(vectors)


@dataclass(frozen=True)
class _Vocabulary:
    """The words of a page, and how they are read."""

    block: str
    facts: dict[str, object]


@lru_cache(maxsize=1)
def _words_block() -> _Vocabulary:
    """Everyday nouns as vectors.

    A noun is stored by its coordinates on the axes of the class names' vectors, because only its
    likeness to the classes matters.

    Raises:
        MissingData: if the words are not installed. This is not kept: they may be fetched before
            the next page is written.
    """
    from blindsight.encoders import words

    if not words.words_available():
        raise MissingData("the files for words are not on this machine: blindsight data get words.")
    names = words.class_names()
    hyponyms = words.noun_classes()
    plain = dict.fromkeys(name.lower() for name in names if re.fullmatch("[A-Za-z ]+", name))
    nouns = dict.fromkeys([*words.general_nouns(), *(n for n, c in hyponyms.items() if c)])
    vocabulary = list(nouns | plain)
    classes = words.class_vectors()
    axes = np.linalg.svd(classes, full_matrices=False)[2][:_WORD_AXES].T
    vectors = _noun_vectors(tuple(vocabulary)) @ axes
    listed = {noun: list(hyponyms[noun]) for noun in vocabulary if hyponyms.get(noun)}
    block = _block(
        {
            "vocabulary": (vocabulary, "json"),
            "vectors": (vectors, "scaled8"),
            "classNames": (list(names), "json"),
            "classVectors": (classes @ axes, "scaled8"),
            "hyponyms": (listed, "json"),
        }
    )
    facts: dict[str, object] = {
        "typicalNorm": float(np.linalg.norm(vectors, axis=1).mean()),
        "temperature": words.TEMPERATURE,
        "hyponymShare": words.HYPONYM_SHARE,
        "stopWords": sorted(words.STOP_WORDS),
    }
    return _Vocabulary(block, facts)


def _noun_vectors(nouns: tuple[str, ...]) -> NDArray[np.float32]:
    """Sentence vectors of the vocabulary, kept in the cache: they take seconds and are public."""
    from blindsight.encoders.words import sentence_vectors

    digest = hashlib.sha256("\n".join(nouns).encode()).hexdigest()[:16]
    path = cache_folder() / "pages" / f"nouns-{digest}.safetensors"
    with suppress(BlindsightError, UncheckedFile, OSError, KeyError):
        stored = storage.load(path, kind="noun vectors")[0]["vectors"]
        if stored.shape[:1] == (len(nouns),) and np.isfinite(stored).all():
            return np.asarray(stored, dtype=np.float32)
    vectors = sentence_vectors(nouns)
    with suppress(OSError):  # the cache is a convenience
        storage.save(path, kind="noun vectors", arrays={"vectors": vectors}, fields={})
    return vectors


def _json_in_html(value: object) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c")


def _asset(name: str) -> str:
    return resources.files("blindsight.release").joinpath("assets", name).read_text("utf-8")


@lru_cache(maxsize=1)
def _script() -> str:
    return "\n".join(_asset(name) for name in _SCRIPTS)


@lru_cache(maxsize=1)
def _style() -> str:
    return _asset("page.css")


def _policy() -> str:
    """No connection of any kind, no code and no style but the page's own."""
    script, style = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (_script(), _style())
    )
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'sha256-{script}'",
            f"style-src 'sha256-{style}'",
            "style-src-attr 'unsafe-inline'",
            "img-src blob:",
            "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _filled(
    facts: PageFacts,
    count: int,
    book: Codebook | FlippedCodes,
    encoder: BuiltIn | None,
    blocks: Mapping[str, str],
    signer: Signer | None,
) -> str:
    guarantee = facts.guarantee
    keeps_names = facts.names == "keep"
    if isinstance(book, FlippedCodes):
        lies = f"{max(1, round(100 * book.beta))} of 100 bits are wrong on purpose."
        drawn = f"For each photo a code of {len(book.offset)} bits was drawn"
    else:
        wrong = max(1, round(100 * (1 - book.mechanism.truth_probability)))
        lies = f"{wrong} of 100 codes are wrong on purpose."
        drawn = f"For each photo one of {book.k:,} codes was drawn"
    unit = "photo" if guarantee.unit == "record" else guarantee.unit
    shuffled = (
        "" if facts.shuffled is None else f"<p class='quiet'>{html.escape(str(facts.shuffled))}</p>"
    )
    values = {
        "policy": _policy(),
        "style": _style(),
        "script": _script(),
        "warning": "<p class='warning'>A simulation: the noise was fixed in advance and protects "
        "nothing.</p>"
        if guarantee.simulation
        else "",
        "n": f"{count:,}",
        "identified": "the photo's name" if keeps_names else "a random id",
        "absent": "The photos themselves. Their names are here: the owner chose to keep them, and "
        "nothing protects them."
        if keeps_names
        else "The photos, their names, faces and places. Only the owner has them.",
        "epsilon": f"{guarantee.epsilon:g}",
        "unit": html.escape(unit),
        "lies": lies,
        "drawn": drawn,
        "shuffled": shuffled,
        "odds": f"{math.exp(min(guarantee.epsilon, 700)):,.0f}",
        "version": html.escape(metadata.version("blindsight")),
        "hint": "Your picture stays on this machine. Words are English."
        if encoder is not None
        else "This release was made with another encoder than this page can run. It needs a "
        f"vector of {html.escape(facts.encoder)}: a file .npy or .json with "
        f"{_vector_facts(book, '')['length']} numbers, which stays on this machine.",
        "invitation": "Drop a picture" if encoder is not None else "Drop a vector",
        "accepted": "image/*" if encoder is not None else ".npy,.json,application/json",
        "notices": _NOTICES if encoder is not None and encoder.network else "",
        "seal": _json_in_html(_seal(facts.release, blocks, signer)),
        "blocks": "\n".join(
            f'<script type="text/plain" id="{name}">{text}</script>'
            for name, text in blocks.items()
        ),
    }
    # The texts between the names in braces, and the values of the names, in turns.
    parts = re.split(r"\{\{(\w+)\}\}", _asset("page.html"))
    parts[1::2] = [values[name] for name in parts[1::2]]
    return "".join(parts)


def _seal(release: str, blocks: Mapping[str, str], signer: Signer | None) -> dict[str, str] | None:
    if signer is None:
        return None
    statement = json.dumps(
        {
            "format": "blindsight page data 1",
            "release": release,
            "blocks": {
                name: hashlib.sha256(text.encode()).hexdigest() for name, text in blocks.items()
            },
        },
        sort_keys=True,
    )
    return {
        "statement": statement,
        "key": base64.b64encode(signer.public_key).decode(),
        "signature": base64.b64encode(signer.sign(statement.encode())).decode(),
    }

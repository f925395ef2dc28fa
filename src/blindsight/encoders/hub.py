"""Open an encoder from what the user wrote: a built-in name, a folder, a file, or `hub:`.

`hub:NAME@COMMIT` downloads a model's files once with huggingface_hub and stores their checksums, so
that the same name and commit can never give other files later. The commit is required, because the
files of a branch may change.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from blindsight.core import durable
from blindsight.core.checks import optional_module
from blindsight.core.errors import HostileFile, InvalidParameter, MissingData
from blindsight.data import cache_folder
from blindsight.encoders.base import Encoder, file_digest, require_same_encoder
from blindsight.encoders.builtin import BUILT_IN, STORED, built_in
from blindsight.encoders.embeddings import Embeddings
from blindsight.encoders.onnx_folder import OnnxEncoder

__all__ = ["hub_folder", "open_encoder", "open_same_encoder"]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_VECTOR_FILES = (".npy", ".npz", ".parquet", ".pq")
_WANTED = (
    "config.json",
    "encoder.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "*image.onnx*",
    "*vision_model.onnx*",
    "*text.onnx*",
    "*text_model.onnx*",
    "onnx/model.onnx*",
    "model.onnx*",
)
_MAX_FILE_BYTES = 16 << 30
_OFFLINE_VARIABLES = ("BLINDSIGHT_OFFLINE", "HF_HUB_OFFLINE")


def open_encoder(source: str | os.PathLike[str] | Encoder, *, offline: bool = False) -> Encoder:
    """Open an encoder by name or by path.

    Parameters:
        source: A built-in name (`lite0`, `lite2`, `both`, `pixels`), a folder of ONNX files, a file
            of vectors (.npy, .npz, .parquet), `hub:NAME@COMMIT`, or an encoder, which is returned
            as it is.
        offline: Never use the network; `hub:` then needs files that were fetched before. The
            environment variable BLINDSIGHT_OFFLINE=1 has the same effect.

    Raises:
        InvalidParameter: Nothing of that name exists.

    Examples:
        >>> open_encoder("lite0").name
        'lite0-128'
    """
    if not isinstance(source, str | os.PathLike):
        return source
    text = os.fspath(source)
    if text.startswith("hub:"):
        return OnnxEncoder(hub_folder(text, offline=offline), name=text)
    path = Path(text)
    if path.suffix.lower() in _VECTOR_FILES and path.is_file():
        return Embeddings(path, name=path.stem)
    if path.is_dir() and (os.sep in text or text not in BUILT_IN):
        return OnnxEncoder(path)
    if os.sep in text or path.suffix:
        raise MissingData(
            f"{text} does not exist. Give a folder of ONNX files, a file of vectors "
            f"({', '.join(_VECTOR_FILES)}), or one of {', '.join(BUILT_IN)}."
        )
    return built_in(text)


def open_same_encoder(
    stored: Mapping[str, object] | None,
    given: str | os.PathLike[str] | Encoder | None,
    *,
    what: str,
) -> Encoder:
    """Open the encoder that something was made with, and refuse every other one.

    Parameters:
        stored: The identity that was saved with it.
        given: What the user gives: a name, a path or an opened encoder. None suffices if the
            encoder is a built-in one.
        what: What was saved and where, for messages: "the tagger tagger.safetensors".

    Raises:
        InvalidParameter: It is another encoder, or one that is not built in and was not given.

    Examples:
        >>> lite0 = open_encoder("lite0")
        >>> open_same_encoder(lite0.identity(), None, what="the index") is lite0
        True
    """
    identity = stored if isinstance(stored, Mapping) else {}
    name = str(identity.get("name", "unknown"))
    if given is None and (identity.get("kind") != "built-in" or name not in STORED):
        raise InvalidParameter(
            f"{what} was made with the encoder {name[:100]!r}, which is not built in. Give its "
            "folder or file, as --encoder or encoder=."
        )
    encoder = STORED[name] if given is None else open_encoder(given)
    require_same_encoder(identity, encoder, what=what)
    return encoder


def hub_folder(name: str, *, offline: bool = False) -> Path:
    """The local folder of `hub:NAME@COMMIT`, fetched if needed and compared with its checksums.

    Raises:
        InvalidParameter: The name has no commit, or is not of the form `hub:owner/model@commit`.
        MissingData: The files are not here and cannot be fetched now.
        HostileFile: The files differ from those that were fetched first.
    """
    model, _, commit = name.removeprefix("hub:").partition("@")
    if not _NAME.fullmatch(model) or not _COMMIT.fullmatch(commit):
        raise InvalidParameter(
            f"an encoder of the hub is named hub:owner/model@commit with the 40 digits of the "
            f"commit, got {name[:120]!r}. The commit is shown under Files on the model's page."
        )
    folder = cache_folder() / "hub" / f"{model.replace('/', '--')}@{commit}"
    sums = folder.with_suffix(".json") if "." not in folder.name else Path(f"{folder}.json")
    if not sums.is_file():
        if offline or any(os.environ.get(variable) == "1" for variable in _OFFLINE_VARIABLES):
            raise MissingData(
                f"{name} was not fetched before, and fetching is switched off. Fetch it once with "
                "a network, or copy the model's files into a folder and give its path."
            )
        _fetch(model, commit, folder)
        checksums = json.dumps(_checksums(folder), indent=1, sort_keys=True)
        durable.write_file(sums, checksums.encode())
    _compare(folder, sums, name)
    return folder


def _fetch(model: str, commit: str, folder: Path) -> None:
    hub = optional_module("huggingface_hub", extra="hub")
    print(
        f"fetching {model} (commit {commit[:12]} of the Hugging Face hub) to {folder}",
        file=sys.stderr,
    )
    try:
        hub.snapshot_download(
            model, revision=commit, local_dir=folder, allow_patterns=list(_WANTED), max_workers=2
        )
    except Exception as error:  # huggingface_hub and its transport have many classes of errors
        raise MissingData(
            f"{model} could not be fetched from the hub ({type(error).__name__}). Without a "
            "network, copy the model's files (ONNX towers, tokenizer.json, "
            "preprocessor_config.json) into a folder and give its path instead of hub:."
        ) from error


def _checksums(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): file_digest(path, largest=_MAX_FILE_BYTES)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".cache" not in path.relative_to(folder).parts
    }


def _compare(folder: Path, sums: Path, name: str) -> None:
    try:
        stored = json.loads(sums.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise HostileFile(f"{sums} is damaged. Delete it and {folder}, and fetch again.") from None
    now = _checksums(folder)
    changed = sorted(path for path in {*now, *stored} if now.get(path) != stored.get(path))
    if changed:
        raise HostileFile(
            f"{changed[0]} of {name} is not what was fetched first. Delete {folder} and fetch it "
            "again."
        )

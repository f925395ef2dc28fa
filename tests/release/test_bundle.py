"""What is shared beside releases of photos comes with card, manifest and signature."""

from __future__ import annotations

import json
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight import (
    OpenedFile,
    learn_metric,
    open_release,
    open_shared,
    send_statistics,
    sketch,
    train_tagger,
    train_together,
)
from blindsight.cli.main import app
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.metric import DPPMetric
from blindsight.release.manifest import Signer, share_folder, write_manifest
from blindsight.sketching import FeatureStatistics

SIDE = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("bundles")
    (base / "photos").mkdir()
    rng = np.random.default_rng(0)
    rows, lines = ["id," + ",".join(f"x{i}" for i in range(4))], ["image,labels"]
    for number in range(40):
        bright = number % 2
        pixels = (rng.random((SIDE, SIDE, 3)) * 60 + 150 * bright).astype(np.uint8)
        Image.fromarray(pixels).save(base / "photos" / f"{number}.png")
        lines.append(f"{number}.png,{'bright' if bright else 'dark'}")
        rows.append(f"r{number}," + ",".join(f"{x:.3f}" for x in rng.normal(3 * bright, 1, 4)))
    pairs = ["a,b,similar", *(f"r{n},r{n + 1 + n % 2},{1 - (n + 1) % 2}" for n in range(37))]
    (base / "labels.csv").write_text("\n".join(lines))
    (base / "features.csv").write_text("\n".join(rows))
    (base / "pairs.csv").write_text("\n".join(pairs))
    return base


def _tagger(base: Path) -> Path:
    out = base / "tagger.safetensors"
    train_tagger(
        base / "photos",
        labels=base / "labels.csv",
        vocabulary="bright,dark",
        features="pixels",
        size=4,
        out=out,
        vault=base / "vault",
    )
    return out


def _metric(base: Path) -> Path:
    out = base / "metric.safetensors"
    learn_metric(base / "pairs.csv", features=base / "features.csv", out=out, n_components=2)
    return out


def _statistics(base: Path) -> Path:
    out = base / "statistics.safetensors"
    send_statistics(
        base / "photos",
        out,
        labels=base / "labels.csv",
        classes="bright,dark",
        encoder="pixels",
        epsilon=4,
        vault=base / "vault",
    )
    return out


def _sketches(base: Path) -> Path:
    sketch(base / "photos", base / "sketches", random_state=0)
    return base / "sketches"


def _flipped(base: Path) -> Path:
    sketch(base / "photos", base / "flipped", grey=True, size=SIDE, flip_epsilon=1.0)
    return base / "flipped"


def _federation(base: Path) -> Path:
    rng, y = np.random.default_rng(1), np.arange(90) % 3
    X = rng.normal(size=(90, 3)) + 4 * np.eye(3)[y]
    np.savez(base / "rows.npz", X=X, y=y.astype(str))
    train_together(
        base / "rows.npz", sites=3, encrypt=False, method="updates", out=base / "model.safetensors"
    )
    return base / "model.safetensors"


SHARED = {
    "tagger": _tagger,
    "metric": _metric,
    "statistics": _statistics,
    "sketches": _sketches,
    "flipped bits": _flipped,
    "federated model": _federation,
}


@pytest.fixture(scope="module", params=SHARED)
def bundle(request, folder) -> Path:
    file = SHARED[request.param](folder)
    shared = file.with_name(f"{file.name}.shared")
    opened = open_shared(shared)
    assert opened.manifest.kind == request.param
    return shared


def test_open_says_what_is_shared_and_what_is_promised(bundle):
    opened = open_shared(bundle)
    assert isinstance(opened, OpenedFile)
    assert opened.file.read_bytes() == (bundle.parent / opened.file.name).read_bytes()
    assert {path.name for path in bundle.iterdir()} == {
        opened.file.name,
        "README.md",
        "card.json",
        "card.txt",
        "manifest.json",
        "manifest.sig",
    }
    done = CliRunner().invoke(app, ["open", str(bundle)])
    assert done.exit_code == 0, done.output
    assert "signed and unchanged" in done.output
    assert opened.manifest.fingerprint in (bundle / "README.md").read_text()
    if opened.guarantee is None:
        assert opened.manifest.kind == "sketches"
        assert (bundle / "card.txt").read_text().strip()
    else:
        assert opened.guarantee.line() == opened.manifest.facts["guarantee"]


@pytest.mark.parametrize("kind", ["metric", "statistics"])
def test_of_two_runs_that_write_one_file_none_shares_the_others_under_its_own_promise(
    folder, tmp_path, monkeypatch, kind
):
    module = import_module(
        "blindsight.app.learn_metric" if kind == "metric" else "blindsight.app.send"
    )
    share, out = module.share_file, tmp_path / "model"

    def release(epsilon: float) -> None:
        if kind == "metric":
            table = folder / "features.csv"
            learn_metric(folder / "pairs.csv", features=table, out=out, epsilon=epsilon)
        else:
            send_statistics(
                folder / "photos",
                out,
                labels=folder / "labels.csv",
                classes="bright,dark",
                encoder="pixels",
                epsilon=epsilon,
                vault=tmp_path / "vault",
                force=True,
            )

    def overtaken(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(module, "share_file", share)
        release(4.0)
        return share(*arguments, **options)

    monkeypatch.setattr(module, "share_file", overtaken)
    release(2.0)
    opened = open_shared(f"{out}.shared")
    stored = (DPPMetric if kind == "metric" else FeatureStatistics).load(opened.file)
    assert opened.guarantee == stored.guarantee_
    assert opened.file.read_bytes() == out.read_bytes()


def test_every_changed_byte_of_a_bundle_is_refused(bundle):
    for path in sorted(bundle.iterdir()):
        whole = path.read_bytes()
        for place in {0, len(whole) - 1, *np.linspace(0, len(whole) - 1, 5).astype(int).tolist()}:
            changed = bytearray(whole)
            changed[place] ^= 1
            path.write_bytes(changed)
            with pytest.raises((HostileFile, InvalidData)):
                open_shared(bundle)
        path.write_bytes(whole)
    open_shared(bundle)


def test_a_model_is_no_release_of_photos(bundle):
    with pytest.raises(InvalidData, match="open_shared"):
        open_release(bundle)


def test_a_signed_card_of_something_else_is_refused(bundle, tmp_path):
    for number, change in enumerate(
        (
            {"kind": "photo codes"},
            {"file": "../secret"},
            {"guarantee": {"epsilon": -1}},
            {"file": 3},
        )
    ):
        hostile = tmp_path / str(number)
        hostile.mkdir()
        for path in bundle.iterdir():
            (hostile / path.name).write_bytes(path.read_bytes())
        fields = json.loads((bundle / "card.json").read_bytes()) | change
        (hostile / "card.json").write_text(json.dumps(fields))
        kind = open_shared(bundle).manifest.kind
        write_manifest(hostile, Signer(bytes(32)), kind=kind, release="0")
        with pytest.raises(HostileFile):
            open_shared(hostile)


def test_two_that_share_into_one_folder_take_turns(tmp_path):
    """The second starts while the first has half of the folder, and waits until it is whole."""
    target, second_writes = tmp_path / "model.shared", threading.Event()

    def share(write) -> None:
        share_folder(target, "model", write, "federated model", guarantee=None, card="None.")

    def second(staging: Path) -> None:
        second_writes.set()
        (staging / "model").write_bytes(b"second")

    other = threading.Thread(target=share, args=(second,))

    def first(staging: Path) -> None:
        other.start()
        assert not second_writes.wait(0.2)
        (staging / "model").write_bytes(b"first")

    share(first)
    other.join()
    assert second_writes.is_set()
    assert open_shared(target).file.read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["model.shared"]

"""Whole Flower apps in this process: a network with epsilon per record, a last layer on photo
folders, a scikit-learn estimator; and what they need of PyTorch.
"""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from PIL import Image

from blindsight.app.flower_example import new_federation
from blindsight.app.train_together import read_labelled
from blindsight.core.errors import InvalidParameter
from blindsight.federated.flower import SecureFedAvg, SumPlan, simulate_enrolment
from blindsight.federated.flower.mod import register_protocol, secure_sum_mod
from blindsight.federated.learning.torch_records import (
    load_arrays,
    named_arrays,
    record_gradients,
)
from blindsight.federated.noise import RecordShares
from blindsight.federated.sums.user import User
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.entropy import SystemEntropy
from federated.flower.local_grid import LocalGrid

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "flower"
CONTEXT = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_example(app: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch) -> ArrayRecord:
    parties = simulate_enrolment(root / "parties", app.PLAN, users=app.SITES)
    monkeypatch.setenv("BLINDSIGHT_PARTIES", str(parties))
    return app.main(LocalGrid(lambda: app.client, app.SITES), CONTEXT)


def test_scikit_learns_sgd_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = load_example("sgd_classifier")
    assert app.accuracy(run_example(app, tmp_path, monkeypatch)) > 0.9  # everything is seeded


def make_photos(folder: Path, classes: tuple[str, ...]) -> None:
    """Folders of three sites of unequal size; the second lacks a class."""
    rng = np.random.default_rng(2)
    colours = [(30, 160, 60), (190, 60, 120)]
    for site, counts in enumerate([(9, 5), (4, 0), (3, 8)]):
        for name, colour, count in zip(classes, colours, counts, strict=True):
            (folder / f"site-{site}" / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(np.array(colour) + rng.normal(0, 40, (24, 24, 3)), 0, 255)
                image = Image.fromarray(pixels.astype(np.uint8))
                image.save(folder / f"site-{site}" / name / f"{number}.png")


def test_the_last_layer_on_photo_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = load_example("photo_folders")
    make_photos(tmp_path / "photos", app.CLASSES)
    monkeypatch.setenv("BLINDSIGHT_PHOTOS", str(tmp_path / "photos"))
    arrays = run_example(app, tmp_path, monkeypatch)
    assert list(arrays) == ["classifier.weight", "classifier.bias"]
    assert app.accuracy(arrays, 2) == 1.0


def test_a_network_with_epsilon_per_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.default_rng(3)  # a fixed seed: the accuracy is the same every time
    monkeypatch.setattr(SystemEntropy, "bytes", lambda self, length: drawn.bytes(length))
    app = load_example("cnn_digits")
    monkeypatch.setattr(app, "ROUNDS", 6)
    settings = app.PLAN.settings(app.SITES)
    assert isinstance(settings.noise, RecordShares)
    guarantee = app.PLAN.guarantee(settings)
    assert (guarantee.unit, guarantee.epsilon <= 8.0) == ("record", True)
    assert app.accuracy(run_example(app, tmp_path, monkeypatch)) > 0.6


def test_the_ledger_is_charged_before_a_contribution_leaves_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = load_example("sgd_classifier")
    plan = SumPlan(
        weights=650, max_examples=600, epsilon=4.0, clip=1.0, rounds=2, unit="record", rate=0.1
    )
    parties = simulate_enrolment(tmp_path / "parties", plan, users=5)
    book = tmp_path / "budget.db"
    mod = secure_sum_mod(lambda c: parties / f"node-{c.node_config['partition-id']}", ledger=book)
    client = register_protocol(ClientApp(mods=[mod]))
    client.train()(app.train)
    relation = "add or remove one"
    with Ledger(book, dataset="federation") as ledger:
        ledger.grant(Cost(epsilon=1.0, delta=1e-3, unit="record", neighbours=relation))
    contributed: list[int] = []
    contribute = User.contribute

    def noted(self: User, *args: object, **options: object) -> object:
        contributed.append(self.number)
        return contribute(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(User, "contribute", noted)
    grid = LocalGrid(lambda: client, 5)
    start = ArrayRecord({"coef": Array(np.zeros((10, 64))), "intercept": Array(np.zeros(10))})
    SecureFedAvg(parties / "server").start(grid, start, num_rounds=1)
    assert contributed == []  # the budget did not suffice, so nothing was made
    with Ledger(book, dataset="federation") as ledger:
        ledger.grant(Cost(epsilon=40.0, delta=1e-2, unit="record", neighbours=relation))
    SecureFedAvg(parties / "server").start(grid, start, num_rounds=2)
    assert len(contributed) == 10
    with Ledger(book, dataset="federation") as ledger:
        # Five sites share this ledger here: each of them charged once for both rounds.
        assert ledger.balance("record").spent.epsilon == pytest.approx(5 * 4.0, rel=0.02)


def small_model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


def test_summed_gradients_are_those_of_single_records_clipped() -> None:
    model, loss = small_model(), torch.nn.functional.cross_entropy
    X, y = torch.randn(7, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    expected = np.zeros(6 * 5 + 3 * 7)
    for x, target in zip(X, y, strict=True):
        model.zero_grad()
        loss(model(x[None]), target[None]).backward()
        row = torch.cat([p.grad.flatten() for p in model.parameters()]).double().numpy()
        expected += row * min(1.0, 0.5 / np.linalg.norm(row))
    sums = record_gradients(model, loss, X, y, clip=0.5, batch=3)
    found = np.concatenate([part.ravel() for part in sums.values()])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    without = record_gradients(model, loss, X[:-1], y[:-1], clip=0.5, batch=3)
    change = found - np.concatenate([part.ravel() for part in without.values()])
    assert np.linalg.norm(change) <= 0.5


def test_parts_of_a_model_are_shared_by_name() -> None:
    model = small_model()
    assert list(named_arrays(model, ["2."])) == ["2.weight", "2.bias"]
    model[0].requires_grad_(False)
    assert list(named_arrays(model)) == ["2.weight", "2.bias"]
    loss = torch.nn.functional.cross_entropy
    sums = record_gradients(model, loss, torch.randn(2, 4), torch.tensor([0, 1]), clip=1.0)
    assert {name: part.shape for name, part in sums.items()} == {"2.weight": (3, 6), "2.bias": (3,)}
    before = model[0].weight.detach().clone()
    load_arrays(model, {"2.bias": np.full(3, 7.0, dtype=np.float32)})
    assert model[2].bias.tolist() == [7.0, 7.0, 7.0]
    assert torch.equal(model[0].weight, before)
    with pytest.raises(InvalidParameter, match="named so"):
        named_arrays(model, ["nothing"])


def test_layers_that_mix_records_are_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    loss = torch.nn.functional.cross_entropy
    with pytest.raises(InvalidParameter, match="mixes records"):
        record_gradients(model, loss, torch.randn(5, 4), torch.zeros(5, dtype=torch.long), clip=1)


def test_the_written_example_is_an_app_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = new_federation(tmp_path / "app").folder
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    runpy.run_path("make_parties.py", run_name="__main__")
    client = importlib.import_module("secure_digits.client_app").app
    server = importlib.import_module("secure_digits.server_app")
    monkeypatch.setenv("BLINDSIGHT_PARTIES", str(folder / "parties"))
    server.main(LocalGrid(lambda: client, 3), CONTEXT)
    last = capsys.readouterr().out.splitlines()[-1]
    assert float(last.removeprefix("after round 3: ").removesuffix(" right")) > 0.9
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert settings["components"]["clientapp"] == "secure_digits.client_app:app"
    for name in [name for name in sys.modules if name.startswith("secure_digits")]:
        monkeypatch.delitem(sys.modules, name)


def test_feature_statistics_in_one_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.default_rng(5)  # a fixed seed: the accuracy is the same every time
    monkeypatch.setattr(SystemEntropy, "bytes", lambda self, length: drawn.bytes(length))
    app = load_example("photo_statistics")
    monkeypatch.setattr(app, "ENCODER", "pixels")
    monkeypatch.setattr(app, "EPSILON", 50.0)
    make_photos(tmp_path / "photos", app.CLASSES)
    monkeypatch.setenv("BLINDSIGHT_PHOTOS", str(tmp_path / "photos"))
    parties = simulate_enrolment(tmp_path / "parties", app.sum_plan(), users=app.SITES)
    monkeypatch.setenv("BLINDSIGHT_PARTIES", str(parties))
    grid = LocalGrid(lambda: app.client, app.SITES)
    model = app.main(grid, CONTEXT)
    rows = read_labelled(tmp_path / "photos" / "site-2", encoder="pixels")
    assert (model.predict(rows.X) == rows.labels).mean() > 0.9
    kinds = [kind for kind, _ in grid.sent]
    assert kinds.count("train") == app.SITES  # one round

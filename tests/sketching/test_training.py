from __future__ import annotations

import ast
import hashlib
import inspect

import numpy as np
import pytest
import torch

import warm
from blindsight import data
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, ProtocolError
from blindsight.sketching import (
    NegativeSketcher,
    NegDL,
    SketchDataset,
    SketchServer,
    SketchSet,
    SketchUser,
)
from blindsight.sketching.networks import ResNet50, SmallResNet, Whitened, build
from blindsight.sketching.trainer import cropped


@pytest.fixture(scope="module")
def digits():
    images = data.load("digits")
    array = images.array()
    # 8 x 8 digits; whatever their scale, brought to 8 bits
    scaled = (array.astype(int) * 255 // max(1, int(array.max()))).astype(np.uint8)
    if scaled.ndim == 4:
        scaled = scaled[..., 0]
    return scaled[:1400], images.labels[:1400], scaled[1400:], images.labels[1400:]


def sketched(q, digits):
    x, y, x_test, y_test = digits
    sketcher = NegativeSketcher(q, random_state=0).fit(x)
    return sketcher.sketch(x, y), sketcher.sketch(x_test, y_test)


# Inputs and optimizer do not depend on each other: every value of each occurs.
@pytest.mark.parametrize(
    ("inputs", "optimizer"), [("mean", "adam"), ("bits", "sgd"), ("both", "adam")]
)
def test_a_network_learns_digits_from_sketches(digits, inputs, optimizer):
    train, test = sketched("Q6", digits)
    rate = 3e-3 if optimizer == "adam" else 0.05
    model = NegDL(
        inputs=inputs,
        optimizer=optimizer,
        learning_rate=rate,
        batch_size=64,
        epochs=8,
        random_state=0,
    )
    assert model.fit(train).score(test) > 0.85  # 0.93 to 0.96 in trials; chance is 0.1


def test_a_network_of_ones_own_is_trained_saved_and_loaded(digits, tmp_path):
    train, test = sketched("Q9", digits)

    def linear(channels, height, width, classes):
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(channels * height * width, classes)
        )

    model = NegDL(linear, epochs=8, learning_rate=0.01, random_state=0).fit(train)
    assert model.score(test) > 0.8
    model.save(tmp_path / "m")
    with pytest.raises(InvalidParameter, match="network"):
        NegDL.load(tmp_path / "m")
    assert (NegDL.load(tmp_path / "m", network=linear).predict(test) == model.predict(test)).all()
    with pytest.raises(HostileFile, match="does not fit"):
        NegDL.load(tmp_path / "m", network=lambda c, h, w, k: torch.nn.Flatten())


def test_sketches_made_otherwise_than_the_models_are_refused(digits):
    train, _ = sketched("Q6", digits)
    _, other = sketched("Q3", digits)
    model = NegDL(epochs=1).fit(train[:100])
    with pytest.raises(InvalidData, match=r"parameters Q6 .* got Q3"):
        model.predict(other)


def colour(n, seed=0):
    """Colour images of 32 x 32 pixels in three classes, told by a bright square's place."""
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 120, (n, 32, 32, 3)), np.arange(n) % 3
    for image, label in zip(images, labels, strict=True):
        image[8 * label + 2 : 8 * label + 10, 10:22, label] += 130
    return images.astype(np.uint8), labels


@pytest.mark.parametrize("network", ["lenet5", "whitened"])
def test_onnx_gives_the_networks_logits_in_the_runtime(network, digits, tmp_path):
    import onnx

    runtime = pytest.importorskip("onnxruntime")
    if network == "lenet5":
        train, test = sketched("Q6", digits)
    else:
        images, labels = colour(40)
        train = test = NegativeSketcher("Q6", random_state=0).fit(images).sketch(images, labels)
    model = NegDL(network, epochs=1, batch_size=20, random_state=0).fit(train[:200])
    model.export_onnx(tmp_path / "m.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    given = SketchDataset(test[:5], inputs=model.recipe_.inputs).batch(range(5)).numpy()
    assert session.run(None, {"x": given})[0] == pytest.approx(
        model.decision_function(test[:5]), abs=1e-4
    )


def test_colour_of_32_pixels_gets_the_whitened_network_and_learns(tmp_path):
    images, labels = colour(180)
    sketcher = NegativeSketcher("Q6", random_state=0).fit(images)
    train, test = (
        sketcher.sketch(images[:120], labels[:120]),
        sketcher.sketch(images[120:], labels[120:]),
    )
    model = NegDL(epochs=6, batch_size=20, random_state=0).fit(train)
    assert (
        model.network_ == "whitened" and model.recipe_.inputs == "mean" and model.recipe_.bfloat16
    )
    assert {value.dtype for value in model.module_.parameters()} == {torch.float32}
    assert model.score(test) > 0.8  # chance is a third
    model.save(tmp_path / "m")
    again = NegDL.load(tmp_path / "m")
    assert np.array_equal(again.decision_function(test), model.decision_function(test))


def test_whitened_patches_are_white():
    images = torch.from_numpy(
        np.random.default_rng(0).normal(size=(50, 3, 16, 16)).cumsum(axis=3)
    ).float()
    network = Whitened(3, 16, 16, 2)
    network.prepare(images)
    patches = network.whiten(images)[:, :12].movedim(1, -1).reshape(-1, 12)
    covariance = torch.cov(patches.T)
    assert torch.allclose(covariance, torch.eye(12), atol=0.05)
    assert not network.whiten.weight.requires_grad


def test_every_image_of_a_batch_has_a_crop_of_its_own():
    x = torch.arange(144.0).reshape(1, 1, 12, 12).repeat(64, 1, 1, 1)
    moved = cropped(x, np.random.default_rng(0), 2)
    assert moved.shape == x.shape and len({tuple(image.flatten().tolist()) for image in moved}) > 15
    middle = {float(image[0, 6, 6]) for image in moved}
    assert middle <= {78.0 + 12 * down + right for down in range(-2, 3) for right in range(-2, 3)}


def test_a_single_class_is_refused(digits):
    train, _ = sketched("Q6", digits)
    with pytest.raises(InvalidData, match="two classes"):
        NegDL().fit(train[:30], np.zeros(30, int))


def test_items_share_the_table_of_posteriors(digits, monkeypatch):
    """Made for each of them, 64 items cost 27 times as much as a batch of 64."""
    from blindsight.sketching import leak

    data, made = SketchDataset(sketched("Q6", digits)[0], inputs="both", cache=False), []
    make = leak.posterior_table
    monkeypatch.setattr(leak, "posterior_table", lambda *law: made.append(law) or make(*law))
    leak._cached_table.cache_clear()
    data.__getitems__(list(range(64)))
    assert [int(label) for _, label in (data[k] for k in range(64))] == digits[1][:64].tolist()
    assert len(made) == 1


def test_torchs_loader_is_served_batch_by_batch(digits, monkeypatch):
    from torch.utils.data import DataLoader

    train, _ = sketched("Q6", digits)
    data, asked = SketchDataset(train[:16], cache=False), []
    batch = SketchDataset.batch
    monkeypatch.setattr(
        SketchDataset, "batch", lambda self, rows: asked.append(len(rows)) or batch(self, rows)
    )
    parts = list(DataLoader(data, batch_size=8))
    assert asked == [8, 8] and torch.equal(
        torch.cat([x for x, _ in parts]), batch(data, np.arange(16))
    )


@pytest.mark.parametrize("name", ["lenet5", "resnet", "whitened"])
def test_networks_take_any_shape(name):
    for shape in [(1, 28, 28), (24, 32, 32), (3, 8, 8)]:
        assert build(name, *shape, 7).eval()(torch.zeros(2, *shape)).shape == (2, 7)


def test_resnet_50_has_the_papers_layers():
    with torch.device("meta"):
        network = ResNet50(3, 32, 32, 10)
    kernels = [m.kernel_size for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
    assert kernels[0] == (7, 7)
    inner = [m for block in network.blocks for m in block.body if isinstance(m, torch.nn.Conv2d)]
    assert len(inner) == 9 + 12 + 18 + 9
    assert sum(p.numel() for p in SmallResNet(3, 32, 32, 10).parameters()) < 200_000


def test_augmented_training_runs_on_colour():
    images = np.random.default_rng(0).integers(0, 256, size=(20, 16, 16, 3)).astype(np.uint8)
    sketches = NegativeSketcher("Q6").fit(images).sketch(images, np.arange(20) % 2)
    model = NegDL(
        "resnet", inputs="mean", augment=True, epochs=1, batch_size=8, random_state=0
    ).fit(sketches)
    assert model.predict_proba(sketches).sum(axis=1) == pytest.approx(np.ones(20))


def test_dataset_gives_the_same_with_and_without_memory(digits):
    train, _ = sketched("Q6", digits)
    for inputs in ("mean", "bits", "both"):
        kept, fresh = (
            SketchDataset(train[:20], inputs=inputs, cache=cache) for cache in (True, False)
        )
        assert torch.equal(kept.batch(np.arange(20)), fresh.batch(np.arange(20)))
        x, label = kept[3]
        assert x.shape == kept.shape and int(label) == train.labels[3]
        assert 0 <= float(x.min()) <= float(x.max()) <= 1


def test_dataset_works_with_torchs_loader(digits):
    from torch.utils.data import DataLoader

    train, _ = sketched("Q6", digits)
    x, y = next(iter(DataLoader(SketchDataset(train[:16]), batch_size=8)))
    assert x.shape == (8, 1, 8, 8) and y.shape == (8,)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"inputs": "pixels"}, "inputs"),
        ({"optimizer": "lbfgs"}, "optimizer"),
        ({"epochs": 0}, "epochs"),
        ({"network": "vgg"}, "network"),
        ({"network": torch.nn.Flatten()}, "function"),
        ({"schedule": "x"}, "schedule"),
    ],
)
def test_wrong_settings_are_refused(digits, params, message):
    train, _ = sketched("Q6", digits)
    with pytest.raises(InvalidParameter, match=message):
        NegDL(**params).fit(train[:20])


def test_training_without_labels_is_refused(digits):
    train, _ = sketched("Q6", digits)
    with pytest.raises(InvalidData, match="label"):
        NegDL().fit(SketchSet(train.counts, train.parameters))


# Algorithm 3's boundary.


def test_what_crosses_the_boundary_is_sketches_labels_and_parameters(digits):
    x, y, _, _ = digits
    message = SketchUser(NegativeSketcher("Q6")).contribute(x[:50], y[:50])
    from safetensors.numpy import load

    arrays = load(message)
    # The digests are those of the header with the labels and of the only block of counts: whoever
    # has the rest of the message knows them.
    assert arrays.keys() == {"counts", "labels", "digests"}
    header = message[: 8 + int.from_bytes(message[:8], "little")]
    assert [row.tobytes() for row in arrays["digests"]] == [
        hashlib.sha256(header + arrays["labels"].tobytes()).digest(),
        hashlib.sha256(arrays["counts"].tobytes()).digest(),
    ]
    assert arrays["counts"].shape == (50, 1, 8, 2, 8, 8)
    assert (arrays["labels"] == y[:50]).all()
    # No image, row of an image, or plane of bits is in the message in the clear.
    for image in x[:50]:
        assert image.tobytes() not in message
        assert np.packbits(image > 127).tobytes() not in message
    assert load(SketchUser(NegativeSketcher("Q6")).ask(x[:5])).keys() == {"counts", "digests"}


def test_two_messages_of_the_same_images_differ(digits):
    x, y, _, _ = digits
    user = SketchUser(NegativeSketcher("Q6"))
    assert user.contribute(x[:5], y[:5]) != user.contribute(x[:5], y[:5])


def test_the_server_trains_and_answers_in_a_process_that_has_only_the_messages(digits, tmp_path):
    x, y, x_test, y_test = digits
    users = [SketchUser(NegativeSketcher("Q9", random_state=seed)) for seed in range(2)]
    (tmp_path / "a").write_bytes(users[0].contribute(x[:700], y[:700]))
    (tmp_path / "b").write_bytes(users[1].contribute(x[700:], y[700:]))
    (tmp_path / "ask").write_bytes(users[0].ask(x_test))
    code = """
import numpy as np
from pathlib import Path
from blindsight.sketching import NegDL, SketchServer
server = SketchServer(NegDL(epochs=6, learning_rate=3e-3, batch_size=64, random_state=0))
for name in "ab":
    server.receive(Path(name).read_bytes())
server.train()
np.save("answer.npy", server.answer(Path("ask").read_bytes()))
"""
    done = warm.run(["-c", code], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = np.load(tmp_path / "answer.npy", allow_pickle=False)
    assert (answer == y_test).mean() > 0.8


def test_the_server_takes_nothing_but_sketches(digits):
    x, y, _, _ = digits
    server = SketchServer(NegDL())
    with pytest.raises(HostileFile):
        server.receive(x[:5].tobytes())
    with pytest.raises(InvalidData, match="takes sketches"):
        NegDL().fit(x, y)
    with pytest.raises(ProtocolError, match="labels"):
        server.receive(SketchUser(NegativeSketcher("Q6")).ask(x[:5]))
    with pytest.raises(ProtocolError, match="no sketches"):
        server.train()


def test_the_servers_code_knows_no_way_to_pixels():
    from blindsight.sketching import trainer

    imported = {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(inspect.getsource(trainer)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = {module for module, _ in imported}
    assert not modules & {"blindsight.sketching.paper", "blindsight.data"}
    # Of the parameters it reads only their fields, not the conversion of pixels to bits.
    names = {name for module, name in imported if module == "blindsight.sketching.parameters"}
    assert names == {"parameters_from_dict"}

"""ResNet-101 with a user's weights: its shape, its parameter count, and files that are refused."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

from blindsight.core.errors import HostileFile, MissingData  # noqa: E402
from blindsight.tagging.resnet import ResNet101, _Network  # noqa: E402


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "resnet101.safetensors"
    network = _Network()
    # The published network has 44,549,160 parameters, 2,049,000 of them in its classifier.
    assert sum(p.numel() for p in network.parameters()) == 44_549_160 - 2_049_000
    state = {k: v.contiguous() for k, v in network.state_dict().items() if "num_batches" not in k}
    save_file({**state, "fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}, path)
    return path


def test_features_have_2048_numbers_an_image(weights):
    images = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), dtype=np.uint8)
    features = ResNet101(weights, size=64, batch_size=2).transform(images)
    assert features.shape == (3, 2048)
    assert np.isfinite(features).all()
    again = ResNet101(weights, size=64, batch_size=3).transform(images)
    np.testing.assert_allclose(features, again, rtol=1e-3, atol=1e-4)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(MissingData):
        ResNet101(tmp_path / "none.safetensors")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"pickle")
    with pytest.raises(HostileFile):
        ResNet101(bad)
    save_file({"conv1.weight": torch.zeros(64, 3, 7, 7)}, bad)
    with pytest.raises(HostileFile, match="does not fit"):
        ResNet101(bad)
    save_file({"conv1.weight": torch.zeros(2, 2)}, bad)
    with pytest.raises(HostileFile):
        ResNet101(bad)

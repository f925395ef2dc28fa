"""Encoders, which turn images and texts into vectors.

| module | content |
|---|---|
| `base` | the protocol `Encoder`, its identity, how an image becomes a network's input |
| `builtin` | EfficientNet-Lite0, Lite2, both, oriented gradients, plain pixels |
| `onnx_folder` | `OnnxEncoder`: a folder of ONNX files, optionally with a text tower |
| `embeddings` | `Embeddings`: vectors computed elsewhere |
| `hub` | `open_encoder`: any of these by name or path |
| `words` | maps words to classes, for encoders without a text tower |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blindsight.core.checks import core_module

if TYPE_CHECKING:
    from blindsight.encoders.base import Classes, Encoder, Preparation, require_same_encoder
    from blindsight.encoders.builtin import (
        BUILT_IN,
        STORED,
        BuiltIn,
        built_in,
        default_recipe,
        feature_recipe,
    )
    from blindsight.encoders.efficientnet import EfficientNet, FeatureCache, PixelPCA, pixels
    from blindsight.encoders.embeddings import Embeddings, encode_images
    from blindsight.encoders.hub import open_encoder, open_same_encoder
    from blindsight.encoders.onnx_folder import OnnxEncoder

__all__ = [
    "BUILT_IN",
    "STORED",
    "BuiltIn",
    "Classes",
    "EfficientNet",
    "Embeddings",
    "Encoder",
    "FeatureCache",
    "OnnxEncoder",
    "PixelPCA",
    "Preparation",
    "built_in",
    "default_recipe",
    "encode_images",
    "feature_recipe",
    "open_encoder",
    "open_same_encoder",
    "pixels",
    "require_same_encoder",
]

_HOMES = {
    "base": ("Classes", "Encoder", "Preparation", "require_same_encoder"),
    "builtin": ("BUILT_IN", "STORED", "BuiltIn", "built_in", "default_recipe", "feature_recipe"),
    "efficientnet": ("EfficientNet", "FeatureCache", "PixelPCA", "pixels"),
    "embeddings": ("Embeddings", "encode_images"),
    "hub": ("open_encoder", "open_same_encoder"),
    "onnx_folder": ("OnnxEncoder",),
}


def __getattr__(name: str) -> Any:
    # Modules are imported on first use: scikit-learn takes a second, and few callers need it all.
    for module, names in _HOMES.items():
        if name in names:
            return getattr(core_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

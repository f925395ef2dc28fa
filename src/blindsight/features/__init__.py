"""Images to vectors: a pretrained network by default, principal components of the pixels as the light way."""

from __future__ import annotations

from blindsight.features.cache import FeatureCache
from blindsight.features.efficientnet import EfficientNet
from blindsight.features.pixels import PixelPCA, pixels

__all__ = ["EfficientNet", "FeatureCache", "PixelPCA", "pixels"]

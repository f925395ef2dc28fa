"""Images to vectors: a pretrained network by default, principal components of the pixels as the
light way.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blindsight.encoders.cache import FeatureCache
    from blindsight.encoders.efficientnet import EfficientNet
    from blindsight.encoders.pixel_pca import PixelPCA, pixels
    from blindsight.encoders.recipes import RECIPES, FeatureRecipe, default_recipe, feature_recipe

__all__ = [
    "RECIPES",
    "EfficientNet",
    "FeatureCache",
    "FeatureRecipe",
    "PixelPCA",
    "default_recipe",
    "feature_recipe",
    "pixels",
]

_HOMES = {
    "EfficientNet": "efficientnet",
    "FeatureCache": "cache",
    "PixelPCA": "pixel_pca",
    "pixels": "pixel_pca",
    **dict.fromkeys(("RECIPES", "FeatureRecipe", "default_recipe", "feature_recipe"), "recipes"),
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: scikit-learn takes a second, and verbs need only the recipes.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

"""The replay contract of the private hashers: codes of private images, and functions learned from
them.
"""

from __future__ import annotations

import copy
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hashing.privunit import PrivUnitHasher
from benchmarks.hashing.sampling import SampledPHashing
from blindsight.hashing import LSH, PITQ, CodebookHasher, PHashing
from blindsight.privacy.vault import Vault
from contracts.replay import ReplayContract

RNG = np.random.default_rng(3)
PUBLIC = RNG.normal(size=(60, 6))
LABELS = RNG.integers(0, 3, 60)
X = RNG.normal(size=(12, 6))
Y = RNG.permutation(np.arange(12) % 3)
# More columns than cells are learned on: what is left out of a row shows in its length.
WIDE = RNG.normal(size=(12, 20))


class _Codes(ReplayContract):
    """A hash function from public images; the codes of private ones leave."""

    def data(self) -> Any:
        return X

    def fitted(self) -> Any:
        return self.make().fit(PUBLIC)

    def run(self, data: Any, folder: Path) -> Any:
        hasher = copy.deepcopy(_from_public(type(self)))
        released = hasher.transform(data)
        hasher.save(folder / "hasher.safetensors")
        return released, hasher.guarantee_


@cache
def _from_public(case: type[_Codes]) -> Any:
    """Learned once per class: what public images teach does not hang on the private ones."""
    return case().fitted()


class TestPHashing(_Codes):
    """Flipped bits per record."""

    def make(self) -> Any:
        return PHashing(LSH(n_bits=6, random_state=0), epsilon=6.0, learned_from="public")


class TestSampledPHashing(_Codes):
    """A few bits of each code."""

    def make(self) -> Any:
        return SampledPHashing(LSH(n_bits=8, random_state=0), epsilon=6.0, learned_from="public")


class TestPrivUnitHasher(_Codes):
    """Noisy directions, in floating point by nature."""

    floats = ("code",)

    def make(self) -> Any:
        return PrivUnitHasher(epsilon=6.0, learned_from="public")


class TestCodebookHasher(_Codes):
    """One of k cells from public images."""

    def make(self) -> Any:
        return CodebookHasher(epsilon=4.0, n_cells=6, learned_from="public")


class TestSupervisedCodebookHasher(_Codes):
    """Cells from public labels."""

    def make(self) -> Any:
        return CodebookHasher(
            epsilon=4.0, learned_from="public", supervised=True, classes=(0, 1, 2)
        )

    def fitted(self) -> Any:
        return self.make().fit(PUBLIC, LABELS)


class _Learned(ReplayContract):
    """The function is learned from the private images too; with little noise, so that data can show
    through.
    """

    def run(self, data: Any, folder: Path) -> Any:
        hasher = self.make()
        parts = data if isinstance(data, tuple) else (data,)
        released = hasher.fit_transform(*parts)
        hasher.save(folder / "hasher.safetensors")
        return released, {name: value for name, value in vars(hasher).items() if name.endswith("_")}

    def data(self) -> Any:
        return X


class TestPITQ(_Learned):
    """Projection, rotation and codes in one budget."""

    def make(self) -> Any:
        return PITQ(n_bits=4, epsilon=40.0, n_iterations=2)


class TestPrivateCodebook(_Learned):
    """Cells from the protected images."""

    def make(self) -> Any:
        return CodebookHasher(epsilon=400.0, n_cells=4)

    def data(self) -> Any:
        return WIDE


class TestPrivateSupervisedCodebook(_Learned):
    """Cells from the protected images and their labels, the label space being public."""

    def make(self) -> Any:
        return CodebookHasher(epsilon=4000.0, supervised=True, classes=(0, 1, 2))

    def data(self) -> Any:
        return (WIDE, Y)


class TestPermanentNoise(_Codes):
    """Codes under a vault's key: of two hash functions, and the first one's again."""

    def run(self, data: Any, folder: Path) -> Any:
        names = [f"{number:032x}" for number in range(len(data))]
        with tempfile.TemporaryDirectory() as kept:
            source = Vault.create(Path(kept) / "vault").source(names, about="photos")
            hashers = [
                PHashing(
                    LSH(n_bits=6, random_state=seed),
                    epsilon=6.0,
                    learned_from="public",
                    random_state=source,
                )
                for seed in (0, 1)
            ]
            one, other = (hasher.fit(PUBLIC) for hasher in hashers)
            return [hasher.transform(data, names=names) for hasher in (one, other, one)]


class TestPermanentCells(TestPermanentNoise):
    """Cells under a vault's key, at two budgets."""

    def run(self, data: Any, folder: Path) -> Any:
        names = [f"{number:032x}" for number in range(len(data))]
        with tempfile.TemporaryDirectory() as kept:
            source = Vault.create(Path(kept) / "vault").source(names, about="photos")
            books = [
                CodebookHasher(
                    epsilon=epsilon, n_cells=6, learned_from="public", random_state=source
                ).fit(PUBLIC)
                for epsilon in (3.0, 4.0)
            ]
            return [book.transform(data, names=names) for book in books]

"""Algorithm 3 as messages: a user part that sketches and a server part that trains. Only bytes pass
between them.

The message holds counts, labels and public parameters and nothing else (`SketchSet.to_bytes`); the
server part has no way to take images. Transport is up to you: a file, a socket, a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.sketching.paper import NegativeSketcher
from blindsight.sketching.sketches import SketchSet
from blindsight.sketching.trainer import NegDL

__all__ = ["Server", "User"]


class User:
    """The owner's side: steps 1 and 2 of both phases."""

    def __init__(self, sketcher: NegativeSketcher) -> None:
        self.sketcher = sketcher

    def contribute(self, images: Any, labels: Any) -> bytes:
        """Sketches and labels of one's images, for training."""
        return self.sketcher.fit(images).sketch(images, labels).to_bytes()

    def ask(self, images: Any) -> bytes:
        """Sketches of new images, for inference."""
        fitted = self.sketcher.fit(images)
        return SketchSet(fitted.transform(images), fitted.parameters_).to_bytes()


class Server:
    """The server's side: collects messages of all users, trains, answers."""

    def __init__(self, model: NegDL) -> None:
        self.model = model
        self._received: list[SketchSet] = []

    def receive(self, message: bytes) -> int:
        """Step 3: take one user's sketches; returns how many are held now."""
        sketches = SketchSet.from_bytes(message)
        if sketches.labels is None:
            raise ProtocolError("a contribution must carry labels.")
        if self._received:
            sketches.require(self._received[0].parameters, self._received[0].image_shape)
        self._received.append(sketches)
        return sum(map(len, self._received))

    def train(self, *, progress: Callable[[int, int], None] | None = None) -> NegDL:
        """Steps 4 to 11."""
        if not self._received:
            raise ProtocolError("no sketches were received yet.")
        return self.model.fit(SketchSet.concatenate(self._received), progress=progress)

    def answer(self, message: bytes) -> NDArray[np.int64]:
        """Testing phase: classes of the sketched images."""
        return self.model.predict(SketchSet.from_bytes(message))

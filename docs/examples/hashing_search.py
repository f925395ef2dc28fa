"""Search noisy codes: one budget per image, spent three ways.

An index of handwritten digits is stored by somebody we do not trust. Each stored digit may cost
epsilon = 8, whole image, proven. The paper's way spends it on 48 flipped bits, a wiser one on few
bits, ours on one question asked well. A query is a digit of the searcher's own and carries no
noise.

Run it: python docs/examples/hashing_search.py
"""

from __future__ import annotations

import numpy as np

from blindsight import data
from blindsight.encoders import PixelPCA
from blindsight.evaluation.retrieval import mean_average_precision, ranked_precisions
from blindsight.hashing import ITQ, CodebookHasher, PHashing


def main() -> dict[str, float]:
    """Mean average precision of the same search over four kinds of stored codes."""
    digits = data.load("mnist5k")
    public, stored, queries = slice(0, 5000, 5), slice(1, 5000, 5), slice(2, 5000, 25)
    X = PixelPCA(32).fit(digits[public]).transform(digits)  # learned from public digits only
    y = digits.labels
    found = {"chance": float((y[queries][:, None] == y[stored][None]).mean())}

    plain = ITQ(48, random_state=0).fit(X[public])
    found["48 bits, no privacy"] = mean_average_precision(
        plain.transform(X[queries]), plain.transform(X[stored]), y[queries], y[stored]
    )
    for bits in (48, 4):
        private = PHashing(
            ITQ(bits, random_state=0),
            epsilon=8.0,
            unit="record",
            random_state=0,
            learned_from="public",
        ).fit(X[public])
        found[f"{bits} flipped bits"] = mean_average_precision(
            private.query(X[queries]), private.transform(X[stored]), y[queries], y[stored]
        )
    book = CodebookHasher(epsilon=8.0, random_state=0, learned_from="public").fit(X[public])
    scores = book.scores(X[queries], book.transform(X[stored]))
    found[f"one of {book.n_cells_} cells"] = float(
        np.nanmean(ranked_precisions(lambda rows: scores[rows], y[queries], y[stored]))
    )
    for name, value in found.items():
        print(f"{name:>20}: mAP {value:.3f}")
    print(book.guarantee_.card())
    return found


if __name__ == "__main__":
    main()

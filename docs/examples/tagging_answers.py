"""Name what is in a picture at a price an answer: three ways to answer at the same proven budget.

Scenes of up to four handwritten digits; the labels are which digits are there. Training is private (DP-SGD at
epsilon 2 per scene, 3.1 with the label counts), every answer costs epsilon 10, and the ledger stops whoever asks on.

Run it: python docs/examples/tagging_answers.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from blindsight import data
from blindsight.core.errors import BudgetExceeded
from blindsight.evaluation.multilabel import mean_average_precision
from blindsight.features import PixelPCA
from blindsight.privacy import Cost, Ledger
from blindsight.tagging import PrivateTagger


def main() -> dict[str, float]:
    """Mean average precision of three kinds of answers; then a ledger that runs dry."""
    train, test = data.scenes(2000, split="train"), data.scenes(300, split="test")
    pca = PixelPCA(64, random_state=0).fit(data.scenes(500, split="train", seed=9).images)  # taken as public
    X, asked = pca.transform(train.images), pca.transform(test.images)
    found = {}
    for release in ("laplace", "gaussian", "codebook"):
        tagger = PrivateTagger(10.0, release=release, training_epsilon=2.0, classes=train.classes, random_state=0)
        tagger.fit(X, train.labels)
        found[release] = mean_average_precision(test.labels, tagger.answer(asked).scores)
        print(f"{release:>10}: mAP {found[release]:.3f}")
    print(tagger.guarantee_.line())
    print(tagger.training_guarantee_.line())

    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "answers.db", dataset="scenes")
        ledger.grant(Cost(epsilon=30.0, unit="query"))
        for number in range(1, 5):
            try:
                named = tagger.answer(asked[:1], ledger=ledger).tags[0]
                print(f"answer {number}: {[name for name, there in zip(train.classes, named, strict=True) if there]}")
            except BudgetExceeded as refused:
                print(f"answer {number}: {refused}")
    return found


if __name__ == "__main__":
    main()

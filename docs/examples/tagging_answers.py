"""Name what is in a picture: exactly, from a model that is private; or with noise, for pictures
that are private too.

Scenes of up to four handwritten digits; the labels are which digits are there. Training is private
(epsilon 2 per scene in all), so exact answers cost nothing more. Published answers cost epsilon 10
per picture, and the ledger stops whoever asks again and again.

Run it: python docs/examples/tagging_answers.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from blindsight import data
from blindsight.core.errors import BudgetExceeded
from blindsight.encoders import PixelPCA
from blindsight.privacy import Cost, Ledger
from blindsight.tagging import CodebookAnswers, DPTraining, Exact, LaplaceAnswers, PrivateTagger


def main() -> dict[str, float]:
    """Mean average precision of three kinds of answers; then a ledger that runs dry."""
    train, test = data.scenes(2000, split="train"), data.scenes(300, split="test")
    pca = PixelPCA(64, random_state=0).fit(
        data.scenes(500, split="train", seed=9).images
    )  # taken as public
    X, asked = pca.transform(train.images), pca.transform(test.images)
    found = {}
    ways = {"exact": Exact(), "laplace": LaplaceAnswers(10.0), "codebook": CodebookAnswers(10.0)}
    for name, answers in ways.items():
        tagger = PrivateTagger(
            DPTraining(epsilon=2.0), answers, classes=train.classes, random_state=0
        )
        tagger.fit(X, train.labels)
        found[name] = tagger.score(asked, test.labels)
        print(f"{name:>10}: mAP {found[name]:.3f}")
    print(tagger.guarantee_.line())
    print(tagger.query_cost())

    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "answers.db", dataset="scenes")
        ledger.grant(Cost(epsilon=30.0, unit="query"))
        for number in range(1, 5):
            try:
                named = tagger.answer(asked[:1], ledger=ledger).tags[0]
                print(
                    f"answer {number}: "
                    f"{[name for name, there in zip(train.classes, named, strict=True) if there]}"
                )
            except BudgetExceeded as refused:
                print(f"answer {number}: {refused}")
    return found


if __name__ == "__main__":
    main()

"""Train on sketches instead of images; then look at what the sketches show.

A server learns digits from sketches of negative databases and never gets a pixel. An attacker with
some hundred public digits looks at the same sketches. No epsilon is claimed for a sketch, and the
pictures below say why.

Run it: python docs/examples/sketching_attack.py
"""

from __future__ import annotations

import numpy as np

from blindsight import data
from blindsight.sketching import CodebookClassifier, CodebookSketcher, NegativeSketcher, NegDL
from blindsight.sketching.attackers import Suite, measure, measured_verdict


def as_text(image: np.ndarray) -> list[str]:
    """A picture in characters, every second row."""
    steps = " .:-=+*#%@"
    return ["".join(steps[min(9, int(value) * 10 // 256)] for value in row) for row in image[::2]]


def main() -> dict[str, float]:
    """Accuracy and what is recovered at Q3, the paper's strongest setting; and the same with a
    promise instead.
    """
    digits = data.load("mnist5k")
    public, train, test = digits[::8], digits[1::4], digits[2::50]

    sketcher = NegativeSketcher("Q3", random_state=0).fit(train)
    sent = sketcher.sketch(test)
    model = NegDL(epochs=3, batch_size=32, random_state=0).fit(sketcher.sketch(train))
    found = {"network on sketches": model.score(sent)}

    suite = Suite(sketcher.parameters_, public=public.array(), steps=15, width=12)
    guesses = suite.recover(sent)
    results = [measure(name, test.array(), guess) for name, guess in guesses.items()]
    for result in results:
        print(f"{result.attack:>24}: PSNR {result.psnr:.1f} dB, SSIM {result.ssim:.2f}")
    pictures = (test.array(), guesses["posterior mean"], guesses["network"])
    for row in zip(*(as_text(picture[0]) for picture in pictures), strict=True):
        print("   ".join(row))
    print(f"Q3: {measured_verdict(results, sent.image_shape)}")

    book = CodebookSketcher(8.0, random_state=0).fit(public)  # a promise per image: epsilon = 8
    promised = CodebookClassifier().fit(book.transform(train), train.labels)
    found["codebook, epsilon 8 per image"] = promised.score(book.transform(test), test.labels)
    for name, accuracy in found.items():
        print(f"{name:>30}: {accuracy:.1%} of digits named right")
    print(book.guarantee_.line())
    return found


if __name__ == "__main__":
    main()

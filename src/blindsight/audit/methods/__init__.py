"""One folder per part: `attacks` (what is tried), `verdicts` (on the paper's claim and our
promise), `figures`.
"""

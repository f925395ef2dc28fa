"""One module per method: its attacks, and the verdicts on the paper's claim and on ours."""

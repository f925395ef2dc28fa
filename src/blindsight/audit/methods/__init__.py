"""One module per method: what is tried, and the verdicts on the paper's claim and on ours."""

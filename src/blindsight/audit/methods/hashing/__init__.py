"""Private hashing: attacks and verdicts."""

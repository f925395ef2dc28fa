"""Private tagging: attacks and verdicts."""

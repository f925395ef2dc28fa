"""Negative databases and sketches: attacks and verdicts."""

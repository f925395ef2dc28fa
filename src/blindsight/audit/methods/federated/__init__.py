"""Sums of encrypted updates: attacks and verdicts."""

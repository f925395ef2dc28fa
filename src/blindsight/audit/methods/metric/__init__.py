"""Learned metrics: attacks and verdicts."""

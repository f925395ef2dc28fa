"""The verdicts on the five papers, each by our own code at paper and at proven calibration."""

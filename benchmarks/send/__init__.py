"""Sending training data: feature statistics, the private head, and DP-SGD on the same features."""

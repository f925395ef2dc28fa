"""Encoders: speed, equality with exports, cells from names and folders, and the noun list."""

"""Readers of the standard formats, one module a format.

Each refuses what it cannot trust with `HostileFile`.
"""

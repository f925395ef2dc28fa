"""The ground floor: errors and their wording, files, packed codes, threads.

Imports nothing of the house above it.
"""

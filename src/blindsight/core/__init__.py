"""The lowest layer: errors, parameter checks, files, packed codes, confinement and plots.

It imports no other part of Blindsight.
"""

"""The owner's library: several data sets of photos under one vault and one ledger.

The workbench shows a library; a program may keep one, too. What is done with the photos of a data
set (read, protect, preview, tag, compare, sketch, attack) is one module each.
"""

"""The owner's library: several data sets of photos under one vault and one ledger.

The workbench shows a library, and other programs may use one too. Each module does one thing with
the photos of a data set: read and protect them, measure risks, search, tag, compare or send.
"""

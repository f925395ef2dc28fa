"""The demo: digits that ship with an installed package, for a look at all five methods without
photos of your own.
"""

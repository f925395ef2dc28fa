"""Negative databases, their sketches, and networks that learn from them (NegDL): what you send."""

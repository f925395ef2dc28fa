"""Measures of answers: `retrieval`, and `scores` of tags and of recovered images."""

"""Quality measures: `retrieval` of rankings, `scores` of tags and of recovered images."""

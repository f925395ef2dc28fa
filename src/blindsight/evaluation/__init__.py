"""Measures of answers: `retrieval`, `multilabel` tags, and `reconstruction` by an attacker."""

"""How good an answer is: `retrieval`, `multilabel` tags, and what an attacker got back
(`reconstruction`).
"""

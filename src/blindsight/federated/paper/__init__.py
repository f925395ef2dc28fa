"""`paper` mode: Algorithm 1 and Equations 1 to 8 of Yonetani et al. (2017) to the letter,
weaknesses included.

One ciphertext a weight; φ and φ^(n) are made once and kept for all rounds; columns of K in the
vector's own order; the key generator decrypts what the aggregator asks for.
`blindsight.audit.methods.federated.attacks` shows what that costs.
"""

from blindsight.federated.paper.roles import PaperAggregator, PaperKeyGenerator, PaperUser

__all__ = ["PaperAggregator", "PaperKeyGenerator", "PaperUser"]

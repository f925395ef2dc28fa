"""The paper's protocol: doubly permuted homomorphic encryption (Yonetani et al. 2017).

`algorithm` has Algorithm 1 in one process, `paillier` the encryption. Use it only to reproduce the
paper, and `blindsight.federated.sums` for anything else.
"""

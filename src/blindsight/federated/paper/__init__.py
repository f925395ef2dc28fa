"""The paper's protocol: doubly permuted homomorphic encryption (Yonetani et al. 2017).

`algorithm` has Algorithm 1 in one process, `paillier` the encryption. It is here to reproduce the
paper; `blindsight.federated.sums` is what to use.
"""

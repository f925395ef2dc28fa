"""The paper's protocol: doubly permuted homomorphic encryption (Yonetani et al. 2017).

`algorithm` has Algorithm 1 in one process, `paillier`, `keys` and `randomisers` the encryption,
`permutation` the permutations. It is here to reproduce the paper; `blindsight.federated.sums` is
what to use.
"""

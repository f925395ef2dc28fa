"""ML-GCN, P2-ML-GCN and RP2-ML-GCN as the paper describes them.

- `taggers`: the three methods as estimators, with the paper's claims beside what is proven,
- `gcn`: the graph convolutional head and its training,
- `laplace`: the noise that the paper prints, and what it promises,
- `label_graph`: label co-occurrence and the paper's re-weighting of it.
"""

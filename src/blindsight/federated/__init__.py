"""Federated classifiers under doubly permuted homomorphic encryption (Yonetani, Boddeti, Kitani and Sato 2017)."""

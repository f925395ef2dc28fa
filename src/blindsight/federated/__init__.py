"""Federated classifiers under doubly permuted homomorphic encryption (Yonetani, Boddeti, Kitani and Sato 2017)."""

from blindsight.federated.estimator import FederatedClassifier
from blindsight.federated.learning import SGD, Change, CommonMask, Federation, LocalTrainer, Proximal, TopK, Weights
from blindsight.federated.protocol import Settings, Simulation, simulate_round

__all__ = [
    "SGD",
    "Change",
    "CommonMask",
    "FederatedClassifier",
    "Federation",
    "LocalTrainer",
    "Proximal",
    "Settings",
    "Simulation",
    "TopK",
    "Weights",
    "simulate_round",
]

"""How the pad's short key is summed without being seen: Paillier slots for one key generator,
shares for holders.
"""

from blindsight.federated.transport.shares import Sharing
from blindsight.federated.transport.slots import Slots

__all__ = ["Sharing", "Slots"]

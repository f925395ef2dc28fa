"""Messages between machines over HTTPS: the aggregator keeps a box for each party, and parties
fetch and answer.

Every party but the aggregator only makes outgoing connections. Nothing here decides anything: a box
holds signed messages of the protocol, the state lives in the parties' folders, and what gets lost
is sent again by whoever still needs it.
"""

"""A federation across machines: folders, enrolment, the coordinator, and HTTPS between them.

- `plan`: what is learned, and how.
- `folders`: one folder for each party; requests and rosters.
- `coordinator`: the aggregator's rounds.
- `server`: the aggregator's HTTPS mailboxes.
- `running`: users and holders with their state on disk; runs an aggregator or a party.
"""

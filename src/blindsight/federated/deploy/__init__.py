"""A federation across machines: folders, enrolment, the coordinator, and HTTPS between them.

plan             what is learned, and how
folders          one folder for each party; requests, rosters
services         users and holders with their state on disk
coordinator      the aggregator's rounds
server, client   HTTPS mailboxes
running          an aggregator or a party from start to end
"""

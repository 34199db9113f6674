"""What HTTP takes: bodies, negotiation, ranges, limits, fetching and checking files of clients.

May import `errors`, `schemas`, `metrics`.
"""

"""HTTP layer below the routes: bodies, negotiation, ranges, limits and clients' files.

May import `errors`, `schemas`, `metrics`.
"""

"""HTTP beneath the routes: bodies, negotiation, ranges, limits, clients' files.

May import `errors`, `schemas`, `metrics`.
"""

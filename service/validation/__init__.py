"""Whether a request is valid for its model, and what its defaults are. Pure.

May import `errors`, `schemas`.
"""

"""Validation of requests against their model, and defaults. Pure functions.

May import `errors`, `schemas`.
"""

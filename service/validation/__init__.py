"""Validation of requests for their model, and defaults. Pure.

May import `errors`, `schemas`.
"""

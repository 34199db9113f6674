"""Operators: their authentication, and the audit log of their acts.

May import `auth`, `front_end` and what is below them.
"""

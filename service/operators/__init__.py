"""Operators: their authentication, and the audit log of their actions.

May import `auth`, `front_end` and what is below them.
"""

"""Operators: who they are, and the log of what they do.

May import `auth`, `front_end` and what is below them.
"""

"""Wan 2.1 and 2.2.

May import every room of `models` but other families and `demo`.
"""

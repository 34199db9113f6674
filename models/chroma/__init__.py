"""Chroma.

May import every room of `models` but other families and `demo`.
"""

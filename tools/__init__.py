"""Generators of files in this repository. Not part of the product.

May import every room; no room imports them.
"""

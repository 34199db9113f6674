"""FLUX.2 klein.

May import every room of `models` but other families and `demo`.
"""

"""Common parts of the families of flow-matching transformers: loading, and parts of specs.

May import every room of `models` but families.
"""

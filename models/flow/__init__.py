"""Common parts of the families of flow-matching transformers: loading, specs, pipelines.

May import every room of `models` but families.
"""

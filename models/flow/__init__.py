"""Parts that the families of flow-matching transformers share: loading, specs, pipelines.

May import every room of `models` but families.
"""

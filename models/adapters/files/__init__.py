"""Adapter files: validation and reading against a model's layer names. No JAX.

May import `spec`.
"""

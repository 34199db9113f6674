"""Model specs for front ends: request fields, defaults, limits and quality presets. No JAX.

May import `media`.
"""

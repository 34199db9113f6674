"""Specs that front ends may know of a model: fields, defaults, limits, presets. No JAX.

Imports nothing of this project.
"""

"""Checkpoints: location, configs, lazily read tensors, and mapping of tensor keys.

May import `spec`.
"""

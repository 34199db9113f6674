"""Mesh slices and chips: mesh shapes, devices, XLA flags, and chips' rated performance.

May import no other room.
"""

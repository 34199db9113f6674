"""Mesh slices and chips: axes and their sizes, devices, flags for XLA, what chips can do.

May import no other room.
"""

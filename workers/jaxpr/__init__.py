"""Traced programs read as data: operations, axes, peak memory. No device is needed.

May import no other room.
"""

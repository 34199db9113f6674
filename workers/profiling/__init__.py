"""Profiles of a running engine: recorded, read, and broken down.

May import engine and slice.
"""

"""Profiling of a running engine: recorder, trace reader and breakdown.

May import engine and slice.
"""

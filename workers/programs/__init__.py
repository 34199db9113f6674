"""Compiled programs: traced from a pipeline for a layout, cached by bucket in memory and in files.

May import jaxpr and slice; imports neither the engine nor the planner.
"""

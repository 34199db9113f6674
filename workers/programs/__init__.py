"""Compiled programs: traced from a pipeline for a layout, kept by bucket in memory and in files.

May import jaxpr and slice. Neither the engine nor the planner is known here.
"""

"""The planner: which layouts fit a slice, and how long a step takes there, by estimate or compiler.

May import programs, jaxpr and slice.
"""

"""Layout planner: which layouts fit a slice, and step times, estimated or from the compiler.

May import programs, jaxpr and slice.
"""

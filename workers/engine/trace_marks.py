"""Marks that the step loop writes into a recording. They cost nothing while none is taken."""

STEP = "atelier step"
"""A wait for a step; it ends when the step's end is seen."""
NO_WORK = "atelier no work"
"""A wait for something to step."""

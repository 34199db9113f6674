"""What the step_loop writes into a recording. It costs nothing while none is taken."""

STEP = "atelier step"
"""A wait for a step; it ends when the step's end is seen."""
NO_WORK = "atelier no work"
"""A wait for something to step."""

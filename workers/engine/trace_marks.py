"""Names of the step loop's annotations in a JAX profile. They cost nothing without a profile."""

STEP = "atelier step"
"""Annotation of the wait for a step to end."""
NO_WORK = "atelier no work"
"""Annotation of the wait for a row to step."""

"""From settings to a pipeline with its weights on a slice: the layout is chosen here.

May import plan, programs, jaxpr and slice.
"""

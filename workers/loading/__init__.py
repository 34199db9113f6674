"""Loading: from settings to a pipeline with its weights on a slice; layouts are chosen here.

May import plan, programs, jaxpr and slice.
"""

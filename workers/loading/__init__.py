"""Model loading: from settings to a pipeline with weights on a mesh slice; chooses the layout.

May import plan, programs, jaxpr and slice.
"""

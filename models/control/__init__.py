"""ControlNet support shared by all families: loading, slots of rows, residuals in steps.

A family provides its network, the reader of its files, the encoding of control images, and the
residuals of a step. May import checkpoints, loading, specs, layouts and the pipeline protocol.
"""

"""Controls of a model's rows: what any family's ControlNets have in common.

A family brings its network, how its files are read, and what the network makes of an image and
adds to a step. May import checkpoints, loading, specs, layouts and the pipeline protocol.
"""

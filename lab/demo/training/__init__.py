"""Training of the demo models, from drawings to checkpoint folders.

May import `demo.world` and the rooms of `models` that families share.
"""

"""The demo's networks, one file a family.

May import `demo.training`, `demo.world` and every family.
"""

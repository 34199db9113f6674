"""Networks and training programs of the demo, one file per family.

May import `demo.training`, `demo.world` and every family.
"""

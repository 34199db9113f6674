"""Networks, samplers and checkpoints of every family, in JAX.

Imports nothing else of this project. `registry` maps checkpoints to families. The layering of the
packages is in tests/test_arrows.py.
"""

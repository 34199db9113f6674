"""Networks, samplers and checkpoints of every family, in JAX.

Imports nothing else of this project. `registry` says which family serves a checkpoint; floors of
the rooms are in tests/test_arrows.py.
"""

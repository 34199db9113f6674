"""Ahead-of-time compilation of a pool's executables into an object store, without its accelerators.

May import all rooms below pools.
"""

"""Building: executables of a pool, compiled where its chips are not, for a store that pools read.

May import all rooms below pools.
"""

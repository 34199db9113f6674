"""Engine benchmark: full-size networks with random weights, timed on this machine's devices.

May import no other room of `deploy`.
"""

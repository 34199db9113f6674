"""Analysis of traced programs (jaxprs): operations, split axes, peak memory. Needs no device.

May import no other room.
"""

"""Layers that all families share.

Its rooms, from the lowest floor up: kernels, quant, layers, attention, blocks.

May import `parallel`, `spec`.
"""

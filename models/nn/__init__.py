"""Layers shared by all model families.

Rooms, from the lowest floor up: kernels, quant, layers, attention, blocks.

May import `parallel`, `spec`.
"""

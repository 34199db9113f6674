"""Attention functions for networks: on one device, or with tokens and heads split by a layout.

May import `nn.kernels`, `nn.layers`, `parallel`.
"""

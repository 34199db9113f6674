"""Attention as networks call it: on one device, or over tokens and heads that a layout splits.

May import `nn.kernels`, `nn.layers`, `parallel`.
"""

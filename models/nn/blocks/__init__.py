"""Blocks of transformers that several families have: layers around one attention.

May import `nn.kernels`, `nn.layers`, `nn.attention`, `parallel`.
"""

"""Transformer blocks that several families share: layers around one attention.

May import `nn.kernels`, `nn.layers`, `nn.attention`, `parallel`.
"""

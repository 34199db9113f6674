"""Matrix products in 8 bits.

May import `nn.kernels`, `parallel`.
"""

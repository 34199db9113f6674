"""Loading of weights: from a checkpoint's tensors to a network's parameters, each in its place.

May import `checkpoint`, `nn.layers`, `nn.quant`, `spec`.
"""

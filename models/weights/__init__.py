"""Weight loading: copies a checkpoint's tensors to the sharded parameters of a network.

May import `checkpoint`, `nn.layers`, `nn.quant`, `spec`.
"""

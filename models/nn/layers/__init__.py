"""Linear layers, norms, embeddings, stacks and step caches.

May import `nn.kernels`, `nn.quant`, `parallel`, `spec`.
"""

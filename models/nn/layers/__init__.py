"""Linear layers, norms, embeddings, stacked layers and step caches.

May import `nn.kernels`, `nn.quant`, `parallel`, `spec`.
"""

"""Adapters (LoRA): file formats, matching of layers, and adapter banks on devices.

May import `checkpoint`, `nn.layers`, `parallel`, `spec`, `text`, `weights`.
"""

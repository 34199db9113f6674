"""Attention and matrix products by chip: XLA, cuDNN, our own for TPUs, and their block sizes.

May import `parallel`.
"""

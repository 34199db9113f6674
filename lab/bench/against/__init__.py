"""Comparison of this engine with diffusers and torch.compile, in alternating turns."""

"""Upscalers of finished images: tiled super-resolution networks (ESRGAN, Real-ESRGAN).

May import `checkpoint`, `nn`, `spec`, `weights`, `loading`.
"""

"""Upscalers of finished images: networks that draw an image larger, whatever drew it.

May import `checkpoint`, `nn`, `spec`, `weights`, `loading`.
"""

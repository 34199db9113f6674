"""Autoencoders of images and video, run at once, in tiles or split over devices.

May import `checkpoint`, `interface`, `nn`, `parallel`, `spec`.
"""

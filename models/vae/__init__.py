"""Autoencoders of images and video, whole, in tiles or split over devices.

May import `checkpoint`, `interface`, `nn`, `parallel`, `spec`.
"""

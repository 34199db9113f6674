"""Image and video files of clients: validation, decoding and scaling. No JAX.

Imports nothing else of this project.
"""

"""Settings: the sections of `atelier.toml`, one file each, and how file and environment are read.

Imports `models.spec` alone.
"""

"""Settings: the sections of `atelier.toml`, one file each, and how they are read.

Imports only `models.spec`.
"""

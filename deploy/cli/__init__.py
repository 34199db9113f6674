"""Command line, with one file per command. Commands import their dependencies when they run.

May import every room of `deploy`.
"""

"""Command line and process supervision.

May import everything but `tools`.
"""

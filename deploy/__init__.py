"""Processes and the command line.

May import everything but `tools`.
"""

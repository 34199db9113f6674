"""Benchmarks of the engine on this machine.

May import every room of workers.
"""

"""Benchmarks: of a running server (`serving`), and of the engine alone (`engine`).

May import no other room of `deploy`.
"""

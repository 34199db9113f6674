"""Benchmarks: of a running server (`serving`), of the engine alone (`engine`).

May import no other room of `deploy`.
"""

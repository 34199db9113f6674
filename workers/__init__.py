"""Workers: one process serves one model on one mesh slice.

Rooms stand on floors (tests/test_arrows.py has them); `metrics` and `retry` are for all of them.
"""

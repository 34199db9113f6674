"""Conformance suite: behaviour of every served family, independent of its network.

A family is a module of `suite/`, and all tests are parametrised over the registry. A family without
a module is not served: tests/families/test_suite.py fails.
"""

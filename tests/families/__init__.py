"""The conformance suite: what every served family does, whatever its network is.

A family is a module of `suite/`; all else is parametrised over the registry. One that has none is
not served: tests/families/test_suite.py fails.
"""

"""Mutants: small faults, each applied alone to a copy of the tree, and the tests that detect them.

They measure how much of what the suite (`make test-all`) detects the gate (`make test`) detects:
`python -m tests.mutants`.
"""

"""Lua scripts, each one atomic operation on jobs, and the client that runs them.

A script's dataclass, with its arguments and answer, is next to the method that calls it: in
`service/jobs/producer.py` and its neighbors.

It may import `redis`, `model` and `scheduling`.
"""

"""Lua scripts, one a transition of a job, each with a dataclass for its arguments and answer.

It may import `redis`, `model` and `scheduling`.
"""

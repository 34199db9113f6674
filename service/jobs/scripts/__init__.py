"""Lua scripts, each one atomic operation on jobs, with dataclasses for arguments and answers.

It may import `redis`, `model` and `scheduling`.
"""

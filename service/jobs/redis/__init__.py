"""Connections to Redis, wake-ups by publish and subscribe, and the names of all keys.

It imports settings alone.
"""

"""Connections to Redis, publish/subscribe wake-ups, and the names of all keys.

It imports settings alone.
"""

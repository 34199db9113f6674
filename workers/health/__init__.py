"""Liveness and readiness of a worker, over HTTP.

May import no other room.
"""

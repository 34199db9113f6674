"""Prometheus metrics of a front end and of its queue.

May import `service.jobs`, `errors`, and no other room of the front end.
"""

"""Prometheus metrics of a front end and of its queue.

May import `service.jobs` and no other room of the front end.
"""

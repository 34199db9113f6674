"""Prometheus metrics of a front end and of the queue it sees.

May import `service.jobs` and no other room of the front end.
"""

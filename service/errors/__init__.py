"""Errors that clients receive, as RFC 9457 problems, and the mapping of exceptions to them.

May import `service.jobs` and no other room of the front end.
"""

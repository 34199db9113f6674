"""Errors that clients meet, as RFC 9457 problems, and which exception becomes which.

May import `service.jobs` and no other room of the front end.
"""

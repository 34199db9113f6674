"""Webhooks: a message to the client's address when its job has ended, signed.

May import `auth`, `http`, `schemas`.
"""

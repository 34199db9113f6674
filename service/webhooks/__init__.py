"""Webhooks: signed messages to clients' URLs when jobs end.

May import `auth`, `http`, `schemas`.
"""

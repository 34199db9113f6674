"""API keys and tenants, and protection against foreign hosts and origins.

May import `errors`.
"""

"""API keys and tenants, and who may reach the server.

May import `errors`.
"""

"""`FrontEnd`: state shared by all requests, its caches, and background tasks.

May import `auth`, `errors`, `http`, `metrics`, `webhooks`.
"""

"""`FrontEnd`: everything that outlives a request, its caches, and the tasks beside requests.

May import `auth`, `errors`, `http`, `metrics`, `webhooks`.
"""

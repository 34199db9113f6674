"""Bodies of requests and responses, strictly typed.

May import `errors`.
"""

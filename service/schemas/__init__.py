"""Bodies of requests and answers, strictly typed.

May import `errors`.
"""

"""Safety hook: the operator's service or function that checks requests and outputs.

Front ends check requests before acceptance, workers outputs before storage. It may import settings,
jobs, and the fair limiter of http.
"""

"""Safety hook: asks the operator's service or function about requests and outputs.

Front ends ask before a request is accepted, workers before an output is stored. It may import
settings, jobs, and the fair limiter of http.
"""

"""Job model: states, fields, errors and metrics of jobs, and their form as a Redis hash.

It imports no other room of `service/jobs`.
"""

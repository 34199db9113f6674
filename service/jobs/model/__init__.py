"""A job as a value: its states, its fields, its errors, and how it is written as a Redis hash.

It imports no other room of `service/jobs`.
"""

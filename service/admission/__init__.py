"""Admission, from a request body to a queued job: parse, resolve, check safety, price, submit.

May import `front_end`, `safety`, `validation` and what is below them.
"""

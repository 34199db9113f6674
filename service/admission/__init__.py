"""Path from a body to a queued job: parse, resolve, price, submit.

May import `front_end`, `validation` and what is below them.
"""

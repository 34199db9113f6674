"""From a body to a job in the queue: parse, resolve, price, submit.

May import `front_end`, `validation` and what is below them.
"""

"""Cost model, queue order and wait estimates of jobs, as pure functions of their inputs.

It may import `model`.
"""

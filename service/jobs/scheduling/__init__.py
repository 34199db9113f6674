"""Cost, order and waits of jobs. Pure: values in, values out.

It may import `model`.
"""

"""What a job costs, who goes first, and how long a job waits. Pure: values in, values out.

It may import `model`.
"""

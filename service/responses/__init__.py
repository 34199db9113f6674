"""HTTP responses about jobs: JSON, files, event streams, and waiting for a job to end.

May import `front_end`, `errors`, `http`, `schemas`.
"""

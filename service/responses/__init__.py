"""Responses: jobs as JSON, files or event streams, and waiting for a job.

May import `front_end`, `errors`, `http`, `schemas`.
"""

"""Container images of front ends and workers, and their health check.

Imports nothing of this project.
"""

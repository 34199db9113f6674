"""Web pages for browsers: the playground and the API reference.

Imports nothing of this project.
"""

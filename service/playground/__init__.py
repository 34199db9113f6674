"""Web pages for browsers: the playground and the operators' page.

Imports nothing of this project.
"""

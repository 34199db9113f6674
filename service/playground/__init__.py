"""The playground and the API's reference page, as browsers get them.

Imports nothing of this project.
"""

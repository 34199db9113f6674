"""HTTP routes, one file per resource: each translates between HTTP and one call of a lower package.

May import every room of the front end.
"""

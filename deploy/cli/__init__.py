"""The command line, one file a command; each imports what it runs when it runs.

May import every room of `deploy`.
"""

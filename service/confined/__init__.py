"""Sandbox for child processes that read clients' files, and the transfer of files to them.

Front ends and workers start these processes. It imports no other room.
"""

"""Load benchmark of a running server over HTTP, with its report.

May import no other room of `deploy`.
"""

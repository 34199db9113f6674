"""Load for a running server, by HTTP, and what became of it.

May import no other room of `deploy`.
"""

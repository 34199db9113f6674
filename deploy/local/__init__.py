"""Whole system on one machine: supervisor, child processes, embedded Redis.

May import no other room of `deploy`.
"""

"""Processes of this version next to processes of the last release, on one Redis and one store."""

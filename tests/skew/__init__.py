"""This version's processes beside the last release's, at one Redis and one store."""

"""Recipes: provenance metadata that output files contain, and their readers.

May import no other room: front ends, workers, the command line and compatible endpoints use it.
"""

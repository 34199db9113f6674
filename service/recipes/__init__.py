"""Recipes: what an output's file says of itself, written into it and read from it.

May import no other room: front ends, workers, the command line and doors all use it.
"""

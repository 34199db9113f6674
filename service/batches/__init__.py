"""Batches: files of requests, worked off line by line with low priority.

A front end drives a batch under a lease; another goes on where it stopped. May import admission,
responses and what is below them.
"""

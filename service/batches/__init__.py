"""Batches: files of requests that run line by line with low priority.

A front end drives a batch under a lease. If it stops, another front end continues. May import
admission, responses and what is below them.
"""

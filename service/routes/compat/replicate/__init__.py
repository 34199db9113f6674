"""Replicate's API: predictions of models, which are jobs.

May import what the other compatible endpoints may. Source: replicate-python,
replicate/prediction.py, run.py, client.py (the shapes).
"""

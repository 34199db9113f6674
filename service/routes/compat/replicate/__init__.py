"""Replicate's API: predictions of models, which are jobs.

It may import what the other doors may. Source: replicate-python, replicate/prediction.py, run.py,
client.py (the shapes).
"""

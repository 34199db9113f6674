"""Simulated pools in virtual time, on the real queue.

The queue's code and scripts run in a real Redis; only their clock is simulated, and pools take the
planner's times instead of running a model.
"""

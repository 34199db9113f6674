"""Fleets of simulated pools in a time of their own, at the real queue.

The queue's code and scripts are the real ones, in a real Redis; only their clock is simulated, and
pools take the planner's times instead of running a model.
"""

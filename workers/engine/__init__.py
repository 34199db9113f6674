"""Engine: denoises the images of many jobs in shared batches, step by step, on one mesh slice.

May import programs, slice, and `workers/metrics.py` and `workers/retry.py`; accesses neither the
queue nor the store.
"""

"""Worker process: claims jobs, runs them through the engine, stores outputs and snapshots.

The highest room: it may import every other room of workers, and service.jobs.
"""

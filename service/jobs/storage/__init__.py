"""Storage of jobs' files in a folder or an object store: inputs, outputs, snapshots.

It imports settings alone.
"""

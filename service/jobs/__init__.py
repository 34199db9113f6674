"""The contract between front ends and workers: jobs in Redis, their events, their files.

It imports `models.spec`, settings and tracing: no web framework, no JAX. Its rooms, from
the lowest floor up: `redis`, `model`, `storage`, `scheduling`, `scripts`; the files here are the
sides of the queue.
"""

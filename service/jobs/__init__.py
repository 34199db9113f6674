"""Job queue in Redis, job events and job files, shared by front ends and workers.

It imports `models.spec`, settings and tracing: no web framework, no JAX. Its rooms, from the lowest
floor up: `redis`, `model`, `storage`, `scheduling`, `scripts`. The files in this folder are the
parts of the queue's client, each with the dataclasses of the scripts that it runs: `producer` for
front ends, `consumer` and `claim_reports` for workers, and so on.
"""

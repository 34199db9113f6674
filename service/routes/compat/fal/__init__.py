"""fal's queue API: `fal_client.subscribe("MODEL", arguments={…})`, with jobs as its requests.

May import what the other compatible endpoints may. Source: fal-client, fal_client/client.py (the
shapes); docs.fal.ai, model-endpoints/queue.
"""

"""fal's queue API: `fal_client.subscribe("MODEL", arguments={…})`, with jobs as its requests.

It may import what the other doors may. Source: fal-client, fal_client/client.py (the shapes);
docs.fal.ai, model-endpoints/queue.
"""

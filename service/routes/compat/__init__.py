"""Doors: the APIs of other services, each translated onto the path of `POST /v1/generate`.

One file a door. It reads what its clients send, says it in our fields, admits it as any request,
and answers in that API's shape. It may import what the other routes may.
"""

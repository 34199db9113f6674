"""Compatible endpoints: other vendors' HTTP APIs, translated to `POST /v1/generate`.

Each parses its clients' requests, converts them to this API's fields, admits them like any request,
and responds in its vendor's format. May import what the other routes may.
"""

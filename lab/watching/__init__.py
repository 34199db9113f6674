"""Images of the dashboards, drawn from a running system's Prometheus."""

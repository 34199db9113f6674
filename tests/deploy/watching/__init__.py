"""Reads and runs the monitoring files in deploy/prometheus and deploy/grafana."""

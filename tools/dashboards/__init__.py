"""Grafana dashboards as code, written as JSON into deploy/grafana/dashboards.

May import every room; no room imports it.
"""

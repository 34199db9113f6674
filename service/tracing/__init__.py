"""Traces and logs of this process: spans, OpenTelemetry, what a log line is about.

Imports `service.settings` alone; every room of `service` and `workers` may import it.
"""

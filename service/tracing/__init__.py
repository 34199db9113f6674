"""Traces and logs of this process: spans, OpenTelemetry, context of log lines.

Imports only `service.settings`; every room of `service` and `workers` may import it.
"""

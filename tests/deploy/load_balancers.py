"""Figures of load balancers that servers must suit."""

from __future__ import annotations

IDLE_S = 600
"""Longest time that a load balancer keeps an idle connection, on which it may send another request:
Google's, with a fixed time. AWS's and nginx's keep theirs for 60 s by default. Source: Cloud Load
Balancing, "Timeouts and retries", HTTP keepalive timeout."""

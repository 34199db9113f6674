"""Schedules of full-size steps by the TPU compiler, recorded in docs/performance."""

"""Schedulers: schedules on the host, pure solver steps on the device, torch's noise.

May import `spec`.
"""

"""Slices of several hosts: the first process leads, the others repeat its launches in order.

May import engine, programs and slice.
"""

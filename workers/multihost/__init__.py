"""Slices of several hosts: the first process leads, the others follow its launches in order.

May import engine, programs and slice.
"""

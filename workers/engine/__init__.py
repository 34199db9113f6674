"""The engine: rows of many jobs, denoised together step by step on one mesh slice.

May import programs, slice and what is for all; knows no queue and no store.
"""

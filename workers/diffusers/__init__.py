"""Diffusers backend: serves pipelines that have no native family, on torch.

The only room that imports torch and diffusers, and only once a worker loads such a model. May
import engine, programs, slice, and `workers/metrics.py`.
"""

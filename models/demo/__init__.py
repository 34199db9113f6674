"""Checkpoints of the demo models, which `lab.demo` has trained. Imports nothing."""

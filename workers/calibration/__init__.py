"""Calibration of quality presets: search for step plans, measure their speed and image quality.

Imports the engine's rows, programs and the loading of models; the command line imports it.
"""

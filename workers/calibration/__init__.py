"""Calibration: which step plans a model has, how fast they are and how near to exact images.

Imports the engine's rows, programs and the loading of models; the command line imports it.
"""

"""What the demo models draw: their words, scenes, motions, and checkers that read images.

Imports nothing of this project.
"""

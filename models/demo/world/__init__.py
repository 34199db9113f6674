"""World that the demo models draw: words, scenes, motions, and checkers that read images.

Imports nothing of this project.
"""

"""World of the demo models: words, scenes, motions, drawing, and checkers of images.

Imports nothing of this project.
"""

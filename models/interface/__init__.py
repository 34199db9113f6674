"""Interface between families and engine: pipeline protocol, step programs, image input and output.

May import `checkpoint`, `nn`, `parallel`, `sampling`, `spec`.
"""

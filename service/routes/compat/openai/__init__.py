"""OpenAI's API: images, and videos in the shape that other open engines share.

Requests become ours (`translated`), jobs become its answers (`shown`); both are pure.
It may import what the other doors may.
"""

"""OpenAI's API: images, batches, files, and videos in the format that other open engines share.

Pure functions convert requests (`translated`) and jobs (`shown`). May import what the other
compatible endpoints may.
"""

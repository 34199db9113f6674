"""Side by side: our engine and diffusers with torch.compile, in alternating turns."""

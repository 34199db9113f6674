"""Program that trains the demo models, whose checkpoints are in `models/demo`."""

"""Settings of InsightFace's published runs, to the letter."""

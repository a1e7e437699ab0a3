"""Measurements of speed: cycles of the device, and tokens per second of a whole model."""

"""Passes that limit what XLA:CPU fuses into one loop."""

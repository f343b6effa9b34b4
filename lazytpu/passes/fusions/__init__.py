"""Passes that limit the fusion of XLA:CPU."""

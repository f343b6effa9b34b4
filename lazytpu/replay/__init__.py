"""Captured steps: calls of a function that run as one program, without the function's Python (`lazytpu.step`)."""

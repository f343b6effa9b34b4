"""Views: (size, stride, offset) turned back into slices, reshapes, transposes and broadcasts (R1)."""

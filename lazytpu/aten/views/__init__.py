"""Views: (size, stride, offset) to slices, reshapes, transposes and broadcasts (R1)."""

"""The meaning of each recorded ATen op in the `lazytpu` dialect, by family: one op, one rule."""

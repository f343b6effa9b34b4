"""What each recorded ATen op means in the `lazytpu` dialect, by family: one op, one rule."""

"""Programs for all sizes up to a bound: how values are padded, and what of the padding must not reach a result."""

"""Programs for all sizes up to a bound: padding of values, and masks that keep padding out of results."""

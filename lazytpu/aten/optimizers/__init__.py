"""Updates of many parameters in one op."""

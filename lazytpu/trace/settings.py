"""Names of the global switches whose values a record's `settings` give; `frontend/recording/ambient.py` reads them."""

DEFAULT_DTYPE = "default dtype"
PRECISION = "float32 precision"
DETERMINISM = "deterministic algorithms"

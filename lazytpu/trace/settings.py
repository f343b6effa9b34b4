"""The names of global switches in a record's `settings`; `frontend/recording/ambient.py` reads their values."""

DEFAULT_DTYPE = "default dtype"
PRECISION = "float32 precision"
DETERMINISM = "deterministic algorithms"

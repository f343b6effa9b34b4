"""Names of the global switches that a record's `settings` give the values of; `lazytpu.frontend.ambient` reads them."""

DEFAULT_DTYPE = "default dtype"
PRECISION = "float32 precision"
DETERMINISM = "deterministic algorithms"

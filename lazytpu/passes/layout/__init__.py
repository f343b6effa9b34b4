"""How values lie: orders of dimensions, tiles, and many small values as one."""

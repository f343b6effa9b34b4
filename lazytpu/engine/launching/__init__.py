"""A cut whose program is known: its runs, whole, in clusters or op by op, and what the device still works on."""

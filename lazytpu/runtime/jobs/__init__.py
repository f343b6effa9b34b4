"""Processes of a multi-process job: the client that sees the devices of all of them."""

"""A process that is one of several: the client that knows the devices of all."""

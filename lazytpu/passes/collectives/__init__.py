"""Communication between devices: in buckets, in order, and in no more parts than are needed."""

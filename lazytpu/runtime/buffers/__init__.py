"""Device memory of values: plain, padded, in a custom layout, or deferred until its program launches."""

"""Compiling in another process, the helper, which goes on when the one that asked has ended.

`elsewhere` is what callers use: a module goes in, and a ticket comes back. `helper` is the process as its parent sees
it, `child` what runs in it, `provide` how it compiles for the cache on disk, and `wire` what the two say to each other.
"""

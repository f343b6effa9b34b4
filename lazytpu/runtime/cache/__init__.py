"""The cache on disk: later processes load the programs that an earlier one compiled.

`store` keeps entries in a private folder. Its modules: `entry` (the bytes of an entry), `folder` (its place and its
safety), `locks` (mutual exclusion of processes), `ledger` (its size, and eviction). `fingerprint` describes the
environment that a program was compiled for. `programs` looks up, loads and compiles executables. `api` is
`lazytpu.cache`.

Only `fingerprint` and `programs` import jax, so that a cache folder can be inspected without it.
"""

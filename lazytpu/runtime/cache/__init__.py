"""The cache on disk: what was compiled once is read by every process that follows.

`store` keeps entries in a private folder (its modules: `entry` the bytes of one, `folder` where and whether it is safe,
`locks` one process at a time, `ledger` the size and what goes first); `fingerprint` is the environment that a program
was compiled for; `programs` finds, loads or compiles executables; `api` is `lazytpu.cache`.

Nothing here imports jax but `fingerprint` and `programs`: a folder can be looked at without it.
"""

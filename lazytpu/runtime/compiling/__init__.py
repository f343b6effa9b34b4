"""Remote compilation: compiling in the helper process, which continues when the requesting process has ended.

Callers use `elsewhere`: they pass a module and receive a ticket. `helper` is the parent's side of the process, `child`
is its main program, `provide` compiles into the cache on disk, and `wire` is the message format.
"""

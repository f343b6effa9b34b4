"""Programs of many sizes: traces that differ only in integers, and the buckets of sizes that share a program."""

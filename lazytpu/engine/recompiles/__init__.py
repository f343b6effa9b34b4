"""Why a program was made: the earlier program nearest to it, what differs, and what to do about it."""

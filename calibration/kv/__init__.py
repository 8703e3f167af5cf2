"""Start-up logs of real servers against the memory sum: how many KV blocks they had, and whether they started."""

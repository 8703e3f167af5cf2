"""Which replica gets a request: one file per policy."""

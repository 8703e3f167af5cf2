"""Learning a few constants of the cost model from a run of a user's own server."""

"""Measured serving points against simulations of them: what each row is, which count, and how well they match."""

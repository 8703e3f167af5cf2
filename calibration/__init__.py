"""Measured data -> shipped facts: constants of collectives, and length tables of public request traces."""

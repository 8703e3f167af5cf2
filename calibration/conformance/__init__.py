"""Recorded schedules of real engines, replayed call by call: who decides otherwise, where first, and how."""

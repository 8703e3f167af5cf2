"""A profiler for one GPU that needs torch and nothing else of this project: see scripts/profile.py, docs/profile.md."""

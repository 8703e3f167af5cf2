"""Retrieval before the prompt: how long it takes, and the chunks that it puts in front of the question."""

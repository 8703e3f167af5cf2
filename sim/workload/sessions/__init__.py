"""Sessions: requests that are rounds of a conversation or an agent's task, sent when the one before has ended."""

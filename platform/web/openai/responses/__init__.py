"""The Responses API without a memory: items in, items out, on the way of a chat."""

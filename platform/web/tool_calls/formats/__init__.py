"""The ways in which models write tool calls, a file for each."""

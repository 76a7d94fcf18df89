"""Where vLLM has the commands that people type by their module."""

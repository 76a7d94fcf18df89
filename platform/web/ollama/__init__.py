"""Ollama's API over the chat: its requests become chats or completions, answers come in its lines of JSON.

Exact paths below /api alone; the management API has /api/v1. Seam: `OllamaCall`, `ollama_error`.
"""

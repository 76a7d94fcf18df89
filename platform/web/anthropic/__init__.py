"""Anthropic's Messages API over the chat: its requests become chats, answers come in its blocks and events.

Knows no model and no engine. Seam: `MessagesCall`, `messages_error`.
"""

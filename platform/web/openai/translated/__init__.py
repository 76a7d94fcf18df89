"""What requests share that become chats: messages that know their places, fields of the chat alone, errors in the
request's terms.

Knows no API but the chat. Seam: `MessagePlaces`, `without_chat_fields`, `in_terms_of`.
"""

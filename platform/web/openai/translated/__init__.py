"""What requests share that become chats: messages that know their places in the request, errors in its terms.

Knows no API but the chat. Seam: `MessagePlaces`, `in_terms_of`.
"""

"""Where POST /v1/load_lora_adapter may take an adapter from: folders of this machine, the Hugging Face hub.

Seam: `fetch_adapter`.
"""

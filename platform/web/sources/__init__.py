"""Where POST /v1/load_lora_adapter may take an adapter from."""

"""The demo model: a small Llama base and LoRA adapters, trained from scratch on text made here."""

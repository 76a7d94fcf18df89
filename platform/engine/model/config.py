"""ModelConfig: what the decoder needs to know of a checkpoint's config.json. Torch-free."""

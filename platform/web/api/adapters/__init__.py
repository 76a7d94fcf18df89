"""The admin API of adapters: versions, aliases, uploads, profiles, certificates, vLLM's runtime LoRA."""

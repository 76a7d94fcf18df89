"""The parity certificate: the served path and an independent reference on the same prompts, layer by layer."""

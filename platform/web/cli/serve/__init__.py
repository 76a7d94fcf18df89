"""Words that serve, and that say how this machine is set up: serve, doctor, config."""

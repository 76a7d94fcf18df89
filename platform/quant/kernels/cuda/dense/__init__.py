"""Products of weights of 16 bits as checkpoints have them. They know no scheme and no format of few bits."""

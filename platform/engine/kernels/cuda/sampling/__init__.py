"""Drawing tokens on the device (triton): the loops of engine/sampling/cuda/sampler.py."""

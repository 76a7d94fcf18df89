"""Drawing tokens on the device (triton): the loops of engine/cuda_sampler.py."""

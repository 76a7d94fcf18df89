"""A decoder on the CPU as one compiled call: what fits, the table of numbers that the call reads, where it works.

Knows no family and no request. The same bits as `Decoder.forward` layer after layer; a decoder that does not fit keeps
to that. Seam: `fuse` in decoder.py.
"""

"""The machine: device, dtype and threads chosen at start, streams, staging buffers, faults.

Knows no step and no request. Seam: `choose_device`, and `stream` for queues of work.
"""

"""The parity certificate: the served path and an independent reference on the same prompts, layer by layer.

Runs in a process of its own. Seam: `run_certify` in `child`, a `CertifyJob` in and a `Certificate` out.
"""

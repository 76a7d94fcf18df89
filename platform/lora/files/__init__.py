"""What an adapter's files say, read without torch and without trusting them.

Knows no page and no device. Seam: `AdapterManifest`, `BaseSignature`. The registry imports no other room of lora but
`inspection` and `conversion`.
"""

"""The audit log as files and queries; the check of its chain.

The rows themselves are the registry's.
"""

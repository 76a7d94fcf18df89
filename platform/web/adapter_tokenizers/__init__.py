"""Tokenizer and chat template of an adapter: what its files may say, checked in a child process.

Opens no such file in the API process. Seam: `check_tokenizer`.
"""

"""Tokenizer and chat template of an adapter: what its files may say, checked in a child process."""

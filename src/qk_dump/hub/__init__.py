"""Dumps on the Hugging Face Hub: fetching and publishing."""

"""Fetching and publishing dumps on the Hugging Face Hub."""

"""Rotary records for dumps that were captured without them."""

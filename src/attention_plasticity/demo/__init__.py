"""What a newcomer sees first: a real model's heads, or a capture of one's own."""

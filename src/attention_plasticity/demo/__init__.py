"""What a newcomer sees first: a real model's heads, a known answer, or a capture of one's own."""

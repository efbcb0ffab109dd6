"""The findings on SmolLM2-135M: levels, attention, roles of heads, and rotary phase."""

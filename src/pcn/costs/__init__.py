"""What a model takes: counted as the paper counts, foreseen for a plan, or measured on this device."""

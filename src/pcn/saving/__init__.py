"""Models, plans and weights in files that a crash leaves whole; forms for other programs."""

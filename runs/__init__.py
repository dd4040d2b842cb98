"""A run folder and what is in it, for whoever trains, measures or compares runs."""

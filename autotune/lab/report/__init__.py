"""A table of trials as one HTML file."""

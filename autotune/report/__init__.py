"""What is shown: results in words and plain data; the command line only prints them."""

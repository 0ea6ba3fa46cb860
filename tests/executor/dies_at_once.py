"""A child that ends before it answers."""

import sys

sys.exit("no more")

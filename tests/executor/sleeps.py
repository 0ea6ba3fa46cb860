"""A child that sleeps."""

import time

time.sleep(600)

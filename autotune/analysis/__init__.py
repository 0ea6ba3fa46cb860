"""Analyses that tell why a kernel is as fast as it is: derived by formula, measured on the device, counted by it."""

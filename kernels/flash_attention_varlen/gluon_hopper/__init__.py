"""Attention over packed sequences in Gluon for Hopper: dense attention's consumers over copies that end with a sequence."""




"""The comparison of the served kernel with every other system: one interleaved race on the same inputs."""

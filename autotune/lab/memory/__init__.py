"""The memory that attention takes beside its inputs."""

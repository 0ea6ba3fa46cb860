"""How much memory attention takes beside its inputs."""

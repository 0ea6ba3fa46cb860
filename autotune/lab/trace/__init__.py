"""Where the time of an implementation goes, step by step."""

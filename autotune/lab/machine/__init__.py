"""The machine that an analysis runs on: its processor, its measured ceilings, and tools that profile it."""

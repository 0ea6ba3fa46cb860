"""The spaces of flash_attention: one module per implementation."""

"""The spaces of flash_attention_varlen: one module per implementation."""

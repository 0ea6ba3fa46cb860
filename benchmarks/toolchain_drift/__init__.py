"""Shipped winners compiled by several versions of Triton, side by side."""

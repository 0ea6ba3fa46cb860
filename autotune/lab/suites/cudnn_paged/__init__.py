"""The notebook on paged attention through cuDNN's frontend: its problem, its page table, its tolerance.

fp16, batch 4, 12 heads, 1024 positions of 64, pages of 64, causal; against torch's SDPA in fp32.
"""

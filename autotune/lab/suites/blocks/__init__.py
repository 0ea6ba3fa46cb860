"""The exercise's search for block sizes: six pairs at three lengths, and the best of them for each length.

There the sizes never reached the kernel; here they are BLOCK_Q and BLOCK_K of ours. On a CPU, where no time of a GPU's
blocks can be measured, the recorded sweeps answer.
"""

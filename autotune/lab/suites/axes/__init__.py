"""The article on optimizing scaled dot-product attention, axis by axis: a cache of keys and values, quantization, score
functions; its grids, on one thread and on two, 100 runs each, and torch's operators by time and memory."""

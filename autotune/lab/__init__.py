"""One room per analysis, suite and report: its computation, words, figure and command lie together."""

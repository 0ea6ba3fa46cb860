"""The grid of model shapes that portfolios learn from: its problems, and their recording on a GPU."""

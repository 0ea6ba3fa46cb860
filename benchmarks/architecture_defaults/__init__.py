"""Defaults of spaces where nothing is recorded, chosen by compiled resources; ``python -m`` runs ``__main__``."""

"""Recommendation with knowledge graphs: ``python -m examples.recommendation``."""

"""Serving: models behind the HTTP interfaces that programs already call."""

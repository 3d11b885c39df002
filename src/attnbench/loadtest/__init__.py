"""Serving under load: requests arrive at scheduled times, are batched, answered or refused, and counted."""

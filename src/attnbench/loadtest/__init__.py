"""Serving under load: requests that arrive on their own time, batched, answered or refused, and counted."""

"""Output for people: terminal tables, charts, and HTML pages."""

"""The schema of the database as one file per migration; a released migration never changes."""

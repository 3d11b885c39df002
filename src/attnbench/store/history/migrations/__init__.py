"""How the database came to its shape, one file a step; a step that was released never changes."""

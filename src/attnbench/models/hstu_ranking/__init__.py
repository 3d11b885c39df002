"""HSTU ranking: a model that scores candidates after a user's history, with a paged cache of that history."""

"""Video diffusion transformers of diffusers with exchangeable attention: random or local weights, no network."""

"""What runs in the generator's process: it says when a request arrives, and does nothing else."""

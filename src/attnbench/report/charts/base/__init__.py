"""What all charts share: the seam, the inks, the matter, and the rows of a case."""

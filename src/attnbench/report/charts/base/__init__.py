"""What all charts share: the seam, the styles, the data, and the rows of a case."""

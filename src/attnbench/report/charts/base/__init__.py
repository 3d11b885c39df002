"""What all charts share: interface, data, styles, panels, label placement."""

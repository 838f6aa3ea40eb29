"""What is known of many rows: moments, spectra, and the Gaussian they make."""

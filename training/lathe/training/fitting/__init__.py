"""From a source to a chain: encode to files, fit, certify."""

"""What compression does to retrieval as the corpus grows, after CoRECT (arXiv 2510.19340)."""

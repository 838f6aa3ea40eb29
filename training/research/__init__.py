"""The papers' experiments, beside the product's path: only the command line imports them, when they are run."""

"""Variants of REZE that Lathe does not have, measured as `research.reze_experiment` measures REZE.

regularizers.py   regularizers of the variants
variants.py       variants by name, and how they pre-finetune
__main__.py       runs an experiment with them, and writes the raw figures
"""

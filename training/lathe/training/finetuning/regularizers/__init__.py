"""Regularizers: losses that are added to InfoNCE so that fine-tuning does not degrade the encoder on other texts.

regularizer.py       the job's section `regularizer`, the interface: prepare, loss; and no regularizer
registry.py          training methods, each with its regularizer
reze.py              distillation pulls pairs to their relations by the base model, which are stored on disk; REZE pulls
                     them to relations that are shrunk in the directions that separate the sources
shrinkage.py         computation of the shrunk relations, before training
"""

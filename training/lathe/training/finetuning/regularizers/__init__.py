"""Regularizers of the training: what is added to InfoNCE so that the encoder does not lose what it knew.

regularizer.py       the interface: prepare, loss; and plain InfoNCE
registry.py          training methods, each with its regularizer
settings.py          the job's section `regularizer`
reze.py              REZE moves pairs to where sources are told apart less; distillation keeps them as they were
relations.py         relations of the pairs by the base model, on disk, used by distillation and REZE
shrinkage.py         REZE's offline mathematics
"""

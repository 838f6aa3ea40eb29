"""Regularizers of the training: what is added to InfoNCE so that the encoder does not lose what it knew.

regularizer.py       the job's section `regularizer`, the interface: prepare, loss; and plain InfoNCE
registry.py          training methods, each with its regularizer
reze.py              REZE moves pairs to where sources are told apart less; distillation keeps them as they were;
                     both by the pairs' relations by the base model, which are stored on disk
shrinkage.py         REZE's offline mathematics
"""

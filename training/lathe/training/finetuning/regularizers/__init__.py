"""Regularizers of the training: what is added to InfoNCE so that the encoder does not lose what it knew.

regularizer.py       the interface: prepare, loss                    settings.py   the job's section `regularizer`
registry.py          training methods, each with its regularizer
none.py              plain InfoNCE
distillation.py      keeps the relations of the pairs as the base model made them
reze.py              moves them to where sources are told apart less
relations.py         relations of the pairs by the base model, on disk, used by distillation and REZE
shrinkage.py         REZE's offline mathematics
"""

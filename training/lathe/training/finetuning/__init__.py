"""Fine-tuning of encoders on anchor–positive pairs: pre-finetuning, REZE, distillation, fine-tuning on one target.

Terms: the *target* is a data set that the trained encoder will be tested on; its test texts must not be trained on. The
*mixture* is the training mixture, the pairs of all sources. A *relation* is the vector of a pair's anchor followed by
the vector of its positive. The *base model* is the encoder before training.

job.py, extras.py            the YAML that a user writes                      ┐
opening.py                   data sets that a job names                       │
mixture.py                   all pairs, and a report on each source           │ training data
mixture_builder.py           reads all sources into one mixture               │
mining.py                    mined hard negatives of the sources              ┘
reference.py                 vectors and relations by the base model
regularizers/                terms that are added to InfoNCE: REZE, distillation, none
loss.py                      InfoNCE and the regularizer                      ┐
evaluators.py                evaluation during training                       │ training
trainer.py                   the sentence-transformers trainer with all three │
callbacks.py                 training log and complete checkpoints            ┘
certificate.py               retrieval on queries that were not trained on, before and after training
requests.py                  request of a training: command, HTTP body and job are the same object
run.py                       a whole job, resumed where it stopped
"""

"""Fine-tuning of encoders on anchor–positive pairs: pre-finetuning, REZE and its control, fine-tuning on one target.

job.py, extras.py            the YAML that a user writes                      ┐
opening.py                   data sets that a job names                       │
mixture.py                   all pairs, and a report on each source           │ training data
mixture_builder.py           reads all sources into one mixture               │
mining.py                    mined hard negatives of the sources              ┘
reference.py                 base-model vectors and relations of pairs
regularizers/                what is added to InfoNCE: REZE, distillation, nothing
loss.py                      InfoNCE and the regularizer                      ┐
evaluators.py                evaluation during training                       │ training
trainer.py                   the sentence-transformers trainer with all three │
callbacks.py                 training log and complete checkpoints            ┘
certificate.py               searches that training has not seen, before and after
requests.py                  a job with the name of its encoder, as command, HTTP body and job
run.py                       a whole job, resumed where it stopped
"""

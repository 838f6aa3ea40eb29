"""Fine-tuning of encoders on anchor–positive pairs: pre-finetuning, REZE and its control, fine-tuning on one target.

job.py         the YAML that a user writes                      ┐
opening.py     data sets that a job names                       │ training data
mixture.py     all pairs, and a report on each source           │
mixing.py      reads all sources into one mixture               ┘
reference.py   base-model vectors and relations of pairs
regularizers/  what is added to InfoNCE: REZE, distillation, nothing
loss.py        InfoNCE and the regularizer                      ┐
trainer.py     the sentence-transformers trainer with both      │ training
progress.py    training log and complete checkpoints            │
run.py         a whole job, resumed where it stopped            ┘
report.py      the HTML report
"""

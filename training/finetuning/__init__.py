"""Fine-tuning of encoders on anchor–positive pairs: pre-finetuning, REZE and its control, fine-tuning on one target.

job.py         the YAML that a user writes                      ┐
opening.py     data sets that a job names                       │ training data
mixture.py     all pairs, and a report on each source           │
mixing.py      reads all sources into one mixture               ┘
reference.py   base-model vectors and relations of pairs        ┐
shrinkage.py   REZE's offline mathematics                       │ the regulariser
targets.py     relations → target relations, stored on disk     ┘
loss.py        InfoNCE and the regulariser                      ┐
trainer.py     the sentence-transformers trainer with both      │ training
progress.py    training log and complete checkpoints            │
run.py         a whole job, resumed where it stopped            ┘
plots.py       figures of the offline phase; report.py          the HTML report
"""

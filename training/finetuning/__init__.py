"""Fine-tuning of encoders on anchor–positive pairs: pre-finetuning, REZE and its control, fine-tuning on one target.

job.py         the YAML that a user writes                      ┐
datasets.py    files and rows of folders, JSON lines, the hub   │
positives.py   rows of a data set → anchor–positive pairs       │ training data
overlap.py     pairs that share texts with the target's test    │
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

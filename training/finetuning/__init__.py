"""Encoders trained on anchor–positive pairs: pre-finetuning, REZE and its control, fine-tuning.

job.py         the YAML a user writes                           ┐
datasets.py    files and rows of folders, JSON lines, the hub   │
positives.py   rows of a data set → anchor–positive pairs       │ what is trained on
overlap.py     pairs that share texts with the target's test    │
mixture.py     all pairs, and what became of each source        │
mixing.py      sources read and put into one mixture            ┘
reference.py   pairs through the encoder as it was: relations   ┐
shrinkage.py   REZE's offline mathematics                       │ what it must stay near
targets.py     relations → targets on disk, and what they are   ┘
loss.py        InfoNCE and the regulariser                      ┐
trainer.py     the library's trainer with both                  │ training
progress.py    losses as lines, checkpoints that are whole      │
run.py         a job in order, taken up again where it stopped  ┘
plots.py       the offline phase as pictures; report.py its page
"""

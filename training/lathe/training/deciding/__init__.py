"""Decisions: candidates are measured on held-out data, and one is recommended in one sentence, with its cost.

requests  requests of the three decisions
judged    documents and judged queries, as texts and as vectors of an encoder
trial     candidates, their measurements, the choice, and the certificate of what is published
adapt     what judged queries can improve: adapt_report, and encoder_training within a budget
migrate   whether another encoder is worth its cost
advise    what to store in a place such as pgvector: advise_report
  sample      sampled rows to fit on and held-out rows, with the halves of held-out texts
  places/     what each place can hold, its bytes, its recall, and the commands
  evidence    further measurements on request: debiasing (R1, R2, ABTT, whitening) and fewer dimensions
"""

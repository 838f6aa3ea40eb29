"""What to do to one's vectors, measured on one's own text.

question        what is asked
draw            distinct rows of a source
encoding        their vectors, without texts that the encoder fails on
sample          those as vectors: to fit on, held out, halves of texts, foreign text
halves          a text cut in two, and how well halves find each other
debiasing       is there a gain in R1, R2, ABTT, whitening
sizes           how small can vectors be
matryoshka      do the first coordinates hold more than others
elsewhere       does a chain serve other text
price           what a chain costs
recommendation  one chain with reasons and price, and the runner-up
enough          was the sample large enough to tell
advise          all of it, in order
words, tables, plots, report
"""

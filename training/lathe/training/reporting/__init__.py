"""Reports of sections with sentences, tables and figures, as HTML pages and as text.

text.py       numbers, intervals and counts as text            ┐ parts of
tables.py     data frames with a format per column             │ a section
figures.py    Matplotlib figures as SVG, in one style          ┘
page.py       sections, sentences from templates, the HTML page of sections, and atomically written files
"""

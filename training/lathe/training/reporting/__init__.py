"""Reports: data plus a template.

text.py       numbers, intervals and counts as text            ┐ what a section
tables.py     data frames with a format per column             │ is made of
figures.py    Matplotlib figures as SVG, in one style          ┘
page.py       sections, their sentences, the HTML page that is made of them, and its atomically written files
"""

"""Reports: data plus a template.

text.py     numbers, intervals and counts as text            ┐
tables.py   data frames with a format per column             │ what a section is made of
figures.py  Matplotlib figures as SVG, in one style          ┘
page.py     sections, and the HTML page that is made of them
files.py    atomically written report files, and the versions they name
"""

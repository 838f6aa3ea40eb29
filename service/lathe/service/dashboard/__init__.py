"""The dashboard: a web page that monitors and administers a server through its HTTP API alone.

static/
├── index.html       the page before any data is loaded
├── *.css, *.js      plain CSS and ES modules, served as they are; no build step, nothing from other servers
├── icon.svg
└── vendor/uplot/    the chart library uPlot 1.6.32 with its licence, unchanged
"""

"""The dashboard: a page that shows and steers a server through its HTTP API, and nothing else.

static/
├── index.html     the frame: what is there before anything is known
├── *.css, *.js    plain CSS and ES modules, sent as they lie here; no build step, nothing from elsewhere
└── icon.svg
"""

"""The dashboard: a web page that monitors and administers a server through its HTTP API alone.

static/
├── index.html     the page before any data is loaded
├── *.css, *.js    plain CSS and ES modules, served as they are; no build step, nothing from other servers
└── icon.svg
"""

"""Data sets in files and on the hub: one layout per task, their tests as mteb tasks, their rows as training pairs."""

"""HTTP before the routes: how large and slow a request may be, whose page may send it, which memory its body takes."""

"""Reports: the house style of figures, one HTML page per run, the gallery, and the page of all claims."""

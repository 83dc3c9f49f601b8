"""Ray actors, one heavy component per file: plain classes, made actors where they are started."""

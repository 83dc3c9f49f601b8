"""Ray actors, one heavy thing in each file: plain classes that Ray is applied to where they are started."""

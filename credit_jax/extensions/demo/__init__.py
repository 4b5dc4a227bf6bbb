"""The demo data set: a moist Held-Suarez climate, computed with dinosaur."""

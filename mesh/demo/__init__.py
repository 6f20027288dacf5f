"""The demonstration: a real model over three workers, one of them killed on the way (`mesh-coord demo`)."""

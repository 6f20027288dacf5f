"""Authority: who may be in the mesh: keys, tokens, members, and the log of who was let in."""

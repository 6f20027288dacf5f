"""Jobs: what clients of a coordinator daemon ask for, kept on disk until it is done."""

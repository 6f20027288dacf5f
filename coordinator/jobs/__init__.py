"""Jobs: what clients of a coordinator daemon submit, stored on disk until it is done."""

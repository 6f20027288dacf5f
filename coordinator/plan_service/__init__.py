"""Plans made on demand and ahead, in this process or another, what they need beforehand, and when they are replaced."""

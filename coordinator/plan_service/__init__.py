"""Plans made on demand and ahead, here and in another process, and what they need beforehand."""

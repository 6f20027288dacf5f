"""Discovery: nodes announce themselves by mDNS, and dial those that they find."""

"""The embedded engine: what makes agents thrash, in virtual time for studies and real time for a server."""
